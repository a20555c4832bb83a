//! The flags of `kera serve`: one for each setting of a node, made from the node's own table.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use kera_server::config::{SETTINGS, Setting, Sources};

use crate::cli::ServeArgs;

/// Settings that were given as flags: (flag, value as written).
#[derive(Clone, Debug, Default)]
pub struct SettingFlags(pub Vec<(String, String)>);

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SettingFlags, clap::Error> {
        let given = |setting: &Setting| {
            let value = matches.get_one::<String>(setting.flag)?;
            Some((setting.flag.to_owned(), value.clone()))
        };
        Ok(SettingFlags(SETTINGS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = SettingFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        SETTINGS.iter().fold(command, |command, setting| {
            let default = if setting.default.is_empty() { "none" } else { setting.default };
            let help = format!("{} [default: {default}]", setting.doc_line().replace('`', ""));
            command.arg(
                Arg::new(setting.flag)
                    .long(setting.flag)
                    .value_name(setting.kind.placeholder())
                    .help(help)
                    .help_heading(setting.section),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        SettingFlags::augment_args(command)
    }
}

impl ServeArgs {
    /// Where the configuration comes from: the file, the environment of this process, these flags.
    pub fn sources(&self) -> Sources {
        let (mut environment, mut unreadable) = (Vec::new(), Vec::new());
        // A name that is not UTF-8 is that of no setting.
        for (name, value) in std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))) {
            match value.into_string() {
                Ok(value) => environment.push((name, value)),
                Err(_) => unreadable.push(name),
            }
        }
        let file = self.config.as_ref().map(Into::into);
        Sources { file, environment, unreadable, flags: self.settings.0.clone() }
    }
}
