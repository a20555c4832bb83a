//! What the tests of formats share with those of the protocol.

#[path = "../../../format/tests/testsuite/support/documents.rs"]
pub(crate) mod documents;
#[path = "../../../format/tests/testsuite/support/golden.rs"]
#[allow(dead_code)] // Tests of formats use all of it.
pub(crate) mod golden;
