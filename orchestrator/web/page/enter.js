// The token is now in a cookie. Replacing this entry takes it out of the address and of the history.
location.replace("./" + location.hash);
