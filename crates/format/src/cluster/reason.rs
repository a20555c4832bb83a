//! Why streamlets change their owners.

use crate::FormatError;

/// Why a streamlet has another owner: each reason has its own condition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum OwnerReason {
    /// It had none.
    First = 0,
    /// Its owner is lost, and where that one's logs end is decided.
    Recovered = 1,
    /// It moves, by the move of this entry's number.
    Moved = 2,
    /// It stays with its owner, and groups that a lost node held of it come to that one.
    Gathered = 3,
    /// Its owner is lost, and a person has said that what only that one had is gone.
    LossAccepted = 4,
    /// It moves to its own node, by the move of this entry's number, with all that is there of it copied as often as its stream is to be.
    Copied = 5,
    /// Who took it over could not open it, and gives it back to the node that it came from, which is back with all of it. The entry's number is the owner epoch that is
    /// given up. Of what the one is said to hold all goes to the other; what it held before it took the streamlet over
    /// [`GroupsHeld`](super::ClusterEntry::GroupsHeld) says behind it, in the same batch, to be with it still.
    GivenBack = 6,
}

impl OwnerReason {
    /// The reason with this number.
    pub(super) fn from_number(number: u32) -> Result<OwnerReason, FormatError> {
        Ok(match number {
            0 => OwnerReason::First,
            1 => OwnerReason::Recovered,
            2 => OwnerReason::Moved,
            3 => OwnerReason::Gathered,
            4 => OwnerReason::LossAccepted,
            5 => OwnerReason::Copied,
            6 => OwnerReason::GivenBack,
            other => {
                let (field, allowed) = ("cluster_entry.reason", "0 to 6");
                return Err(FormatError::BadField { field, value: other.into(), allowed });
            }
        })
    }
}
