//! Groups as clients see them, request by request.

mod changing;
mod classic;
mod consumer;
mod keeping;
mod offsets;
mod random;
mod statics;
