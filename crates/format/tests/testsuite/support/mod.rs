//! What tests of formats share.

pub(crate) mod documents;
pub(crate) mod golden;
