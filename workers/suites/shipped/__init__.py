"""The suites that come with the program: a file each, in which `profiles.suites` finds `SUITE`."""
