"""What runs behind the wall: zygote and children. Standard library only, no import of the package above."""
