//! kera-broker
