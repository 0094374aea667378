"""Code that runs inside the sandbox: zygote and children. Standard library only; imports nothing from the parents."""
