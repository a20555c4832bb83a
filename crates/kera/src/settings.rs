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

/// Those that a first start may need: the short help has no others.
const FIRST: [&str; 7] = ["data", "disks", "listen", "http-listen", "kafka-listen", "arena-bytes", "log-level"];

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        SETTINGS.iter().fold(command, |command, setting| {
            let default = if setting.default.is_empty() { "none" } else { setting.default };
            let help = setting.doc_line().replace('`', "");
            let short = help.split_once(". ").map_or(help.as_str(), |(first, _)| first).trim_end_matches('.');
            let with_default = |help: &str| format!("{help} [default: {default}]");
            command.arg(
                Arg::new(setting.flag)
                    .long(setting.flag)
                    .value_name(setting.kind.placeholder())
                    .help(with_default(short))
                    .long_help(with_default(&help))
                    .hide_short_help(!FIRST.contains(&setting.flag))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_help_of_a_node_has_some_of_its_settings_and_the_long_one_all() {
        let mut command = SettingFlags::augment_args(Command::new("serve"));
        let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
        for setting in SETTINGS {
            let flag = format!("--{} <", setting.flag);
            assert_eq!(short.contains(&flag), FIRST.contains(&setting.flag), "{flag}");
            assert!(long.contains(&flag), "{flag}");
        }
        assert!(FIRST.iter().all(|flag| SETTINGS.iter().any(|setting| setting.flag == *flag)));
    }
}
