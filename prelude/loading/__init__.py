"""From a name or a directory to an engine: files, executor, limits and memory are brought together. Nothing here
runs after the engine has started."""
