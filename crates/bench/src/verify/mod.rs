//! Doubting a server: records that describe themselves go in, what was acknowledged is written down, and later
//! everything that comes out is held against it. Nothing may be lost, nothing may be there twice, order is kept.

pub mod acklog;
pub mod checker;
pub mod intervals;
pub mod record;
