//! Writes the seeds of every target into `corpus/`, for `cargo fuzz run`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (target, seeds) in kera_fuzz::seeds::all(&fuzz.join("../spec")) {
        let folder = fuzz.join("corpus").join(target);
        std::fs::create_dir_all(&folder)?;
        for (i, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{i:03}")), seed)?;
        }
        println!("corpus/{target}: {} seeds", seeds.len());
    }
    Ok(())
}
