//! Subscriber authentication and address pools, sans-IO.
