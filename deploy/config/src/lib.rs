//! The YAML configuration both daemons read.
