//! What goes wrong in a run, and how often: kinds with names and weights, and who draws them.

use kera_env::{Random, SeededRandom};

/// A kind of fault.
pub(crate) trait Kind: Copy + std::fmt::Debug + 'static {
    /// All of them.
    const ALL: &'static [Self];
    /// How often it happens, beside the others.
    fn weight(self) -> u64;
}

/// Kinds of faults, each with its name on the command line and in reports, and its weight.
macro_rules! faults {
    ($(#[$of:meta])* { $($(#[$doc:meta])* $name:ident = $text:literal, $weight:literal;)+ }) => {
        $(#[$of])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Fault {
            $($(#[$doc])* $name),+
        }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Fault] = &[$(Fault::$name),+];

            /// Its name on the command line and in reports.
            pub fn name(self) -> &'static str {
                match self { $(Fault::$name => $text),+ }
            }
        }

        impl $crate::faults::Kind for Fault {
            const ALL: &'static [Fault] = Fault::ALL;

            fn weight(self) -> u64 {
                match self { $(Fault::$name => $weight),+ }
            }
        }
    };
}
pub(crate) use faults;

/// Which faults happen in a run.
#[derive(Debug)]
pub(crate) struct Faults<F> {
    kinds: Vec<F>,
    weights: u64,
}

impl<F: Kind> Faults<F> {
    /// Those that may.
    pub(crate) fn those(may: impl Fn(F) -> bool) -> Faults<F> {
        let kinds: Vec<F> = F::ALL.iter().copied().filter(|fault| may(*fault)).collect();
        let weights = kinds.iter().map(|fault| fault.weight()).sum();
        Faults { kinds, weights }
    }

    /// The next one; nothing, if there is none that may happen.
    pub(crate) fn draw(&self, random: &SeededRandom) -> Option<F> {
        let mut drawn = Random::below(random, self.weights.max(1));
        for fault in &self.kinds {
            if drawn < fault.weight() {
                return Some(*fault);
            }
            drawn -= fault.weight();
        }
        None
    }
}
