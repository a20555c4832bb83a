//! A coordinator with everything that tests drive it by.
