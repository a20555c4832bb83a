//! Second versions of messages that have had a third one, as they were released: nothing in here changes any more. As [`crate::first`].

pub mod admin;
pub mod moves;
