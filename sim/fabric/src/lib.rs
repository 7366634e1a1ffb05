//! Links, fault rules, packet peers and capture between simulated NICs.
