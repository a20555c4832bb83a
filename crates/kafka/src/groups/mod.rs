//! The group coordinator of the Kafka door: members, generations, offsets. Logic without sockets, clocks or disks.
