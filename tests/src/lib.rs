//! Suites over the whole of Ferroce.
