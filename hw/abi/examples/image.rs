//! Puts the header before the firmware's code: `cargo run -p abi --example image CODE IMAGE`, as `firmware/build.sh` does.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(from), Some(to)) = (args.next(), args.next()) else { return Err("usage: image CODE IMAGE".into()) };
    let code = std::fs::read(&from).map_err(|e| format!("cannot read {from}: {e}"))?;
    let image = [&abi::image::header_of(&code)[..], &code].concat();
    abi::image::open(&image).map_err(|fault| format!("{from} makes no image: {fault:?}"))?;
    std::fs::write(&to, image).map_err(|e| format!("cannot write {to}: {e}"))?;
    Ok(())
}
