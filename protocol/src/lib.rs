//! Messages between the core and the launcher.
