//! `kera config`: look at a configuration without starting a node.

use kera_server::config::{Loaded, Mistakes, SETTINGS, file_text, load};
use serde_json::{Map, Value, json};

use crate::cli::{ConfigCommand, Globals, ServeArgs};
use crate::error::CliError;
use crate::output::{print, print_json};

/// Runs the command.
///
/// # Errors
/// The configuration has mistakes.
pub fn run(command: &ConfigCommand, globals: &Globals) -> Result<(), CliError> {
    match command {
        ConfigCommand::Check(args) => check(args, globals),
        ConfigCommand::Show(args) => show(args, globals),
    }
}

fn check(args: &ServeArgs, globals: &Globals) -> Result<(), CliError> {
    let result = load(&args.sources());
    let mut told = Ok(());
    if globals.json {
        let (mistakes, notices) = match &result {
            Ok(loaded) => (Vec::new(), loaded.notices.clone()),
            Err(Mistakes(all)) => {
                let one = |m: &kera_server::config::Mistake| json!({ "place": m.place, "setting": m.setting, "error": m.message });
                (all.iter().map(one).collect(), Vec::new())
            }
        };
        told = print_json(&json!({ "mistakes": mistakes, "notices": notices }));
    }
    let loaded = result.map_err(|mistakes| bad_config(&mistakes))?;
    if globals.json {
        return told;
    }
    let set = loaded.origins.iter().filter(|o| **o != kera_server::config::Origin::Default).count();
    let notices: String = loaded.notices.iter().map(|n| format!("note: {n}\n")).collect();
    print(&format!("{notices}the configuration is fine: {set} of {} settings are set\n", SETTINGS.len()))
}

fn show(args: &ServeArgs, globals: &Globals) -> Result<(), CliError> {
    let loaded = load(&args.sources()).map_err(|mistakes| bad_config(&mistakes))?;
    if globals.json {
        return print_json(&config_json(&loaded));
    }
    print(&file_text(&loaded.config, &loaded.origins))
}

fn config_json(loaded: &Loaded) -> Value {
    let mut all = Map::new();
    for (index, setting) in SETTINGS.iter().enumerate() {
        let value = json!({
            "value": setting.shown(&loaded.config),
            "origin": loaded.origins[index].to_string(),
            "default": setting.default,
            "allowed": setting.kind.allowed(),
            "flag": format!("--{}", setting.flag),
            "variable": setting.variable(),
        });
        all.insert(setting.name(), value);
    }
    Value::Object(all)
}

/// All mistakes as one error.
pub fn bad_config(mistakes: &Mistakes) -> CliError {
    let mut error =
        CliError::failure(mistakes.to_string()).next("docs/configuration.md and `kera config show` list every setting");
    error.exit = kera_server::fatal::Fatal::Config(mistakes.clone()).exit_status();
    error
}
