"""An online backup: a copy of a store, running or stopped, that is true of one moment."""
