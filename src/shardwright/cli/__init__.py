"""The commands, one file each: parse, call one library function, print."""
