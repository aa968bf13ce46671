"""Where profiles come from: each source finds span folders and reads their data files."""
