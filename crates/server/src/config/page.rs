//! The table of settings as text: the page `docs/configuration.md`, and a file with every setting and its value. Pure.

use std::fmt::Write;

use super::{Config, Kind, Origin, SECTIONS, SETTINGS};

fn one_line(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The page of all settings, in Markdown. A test compares it with `docs/configuration.md`.
pub fn page_text() -> String {
    let mut page = String::from(HEAD);
    for (section, doc) in SECTIONS {
        let _ = write!(page, "\n## [{section}]\n\n{}\n", one_line(doc));
        for setting in SETTINGS.iter().filter(|s| s.section == *section) {
            let default = if setting.default.is_empty() { "nothing" } else { setting.default };
            let _ = write!(
                page,
                "\n### {}\n\n{}\n\n- Default: `{default}`\n- Allowed: {}\n- Flag: `--{}` · variable: `{}`\n",
                setting.name(),
                setting.doc_line(),
                setting.kind.allowed(),
                setting.flag,
                setting.variable(),
            );
        }
    }
    page
}

const HEAD: &str = "\
# Configuration

<!-- Generated from the table in crates/server/src/config/mod.rs; KERA_UPDATE_DOCS=1 cargo test -p kera-server writes it. -->

`kera serve` needs no configuration. Everything below can be set in three ways; the first one that is given wins:

1. a flag of `kera serve`, like `--listen 0.0.0.0:7070`,
2. an environment variable, like `KERA_LISTEN=0.0.0.0:7070`,
3. a TOML file, named with `--config FILE` or `KERA_CONFIG`:

```toml
[network]
listen = \"0.0.0.0:7070\"

[arena]
bytes = \"4GiB\"
```

Sizes are numbers with `B`, `KiB`, `MiB`, `GiB` or `TiB` (steps of 1024; `K`, `M`, `G`, `T` mean the same) or `KB`, `MB`,
`GB`, `TB` (steps of 1000). Without a unit they are bytes.
Times are numbers with `ms`, `s`, `m`, `h`, `d` or `w`, also several, like `1h30m`.

`kera config check --config FILE` reports all mistakes of a file at once and starts nothing; `kera config show` prints every
setting with its value and where it came from, as a file that can be used: those that nobody has set stand behind a `#`.
";

/// A file with every setting and its value, and behind it where that came from. What nobody has set stands there as a comment: some defaults give way to what is there (a port for
/// Kafka clients that is taken), and what a file says is what somebody wants; and another version may have others.
pub fn file_text(config: &Config, origins: &[Origin]) -> String {
    let mut file = String::new();
    for (section, doc) in SECTIONS {
        let gap = if file.is_empty() { "" } else { "\n" };
        let _ = write!(file, "{gap}# {}\n[{section}]\n", one_line(doc));
        for (index, setting) in SETTINGS.iter().enumerate().filter(|(_, s)| s.section == *section) {
            let value = setting.shown(config);
            let literal = match setting.kind {
                Kind::Count(_) if value.bytes().all(|b| b.is_ascii_digit()) => value,
                Kind::Switch => value,
                Kind::Paths => {
                    let paths = value.split(',').filter(|p| !p.is_empty()).map(quoted);
                    format!("[{}]", paths.collect::<Vec<_>>().join(", "))
                }
                _ => quoted(&value),
            };
            let origin = &origins[index];
            let unset = if *origin == Origin::Default { "# " } else { "" };
            let _ = writeln!(file, "{unset}{} = {literal}  # {origin}", setting.key);
        }
    }
    file
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}
