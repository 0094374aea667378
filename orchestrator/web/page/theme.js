// Before the first paint: the colours that were chosen here, else those of the system.
(() => {
  let choice = "system";
  try { choice = localStorage.getItem("theme") || "system"; } catch { /* a browser without storage */ }
  document.documentElement.dataset.theme = choice;
})();
