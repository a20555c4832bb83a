//! Of [`crate::application`]: becoming a member, before a member said which leases it knows of.

use kera_format::StreamId;

use super::bodies;
use crate::codec::wire_struct;
use crate::{JoinApplication, Start};

wire_struct! {
    /// [`JoinApplication`], version 1.
    pub struct JoinApplicationV1 {
        /// Its name, see [`kera_format::limits::name_is_valid`].
        pub application: String,
        /// The stream.
        pub stream: StreamId,
        /// What the consumer calls itself, for listings. At most 255 bytes.
        pub member_name: String,
        /// The member id of an earlier join, to keep its leases after a lost connection; zero: a new member.
        pub member: u64,
        /// Where to start in lanes that the application has committed nothing of.
        pub start: Start,
        /// After how long without a heartbeat its leases may go to others, in milliseconds; zero: the broker's default.
        pub lease_ms: u32,
    }
}

impl From<&JoinApplication> for JoinApplicationV1 {
    fn from(current: &JoinApplication) -> JoinApplicationV1 {
        let JoinApplication { application, stream, member_name, member, start, lease_ms, leases: _ } = current.clone();
        JoinApplicationV1 { application, stream, member_name, member, start, lease_ms }
    }
}

impl From<JoinApplicationV1> for JoinApplication {
    fn from(first: JoinApplicationV1) -> JoinApplication {
        let JoinApplicationV1 { application, stream, member_name, member, start, lease_ms } = first;
        JoinApplication { application, stream, member_name, member, start, lease_ms, leases: None }
    }
}

bodies!(JoinApplicationV1);
