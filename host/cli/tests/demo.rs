//! What `ferroce demo` says to input that it cannot use: it names what, where, and what is possible, before it builds anything;
//! what it says of a lossy link; and that it ends where the network never lets it.

use std::path::PathBuf;
use std::process::Command;

fn says(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_ferroce")).arg("demo").args(args).output().unwrap();
    assert!(!out.status.success(), "{args:?} was taken");
    String::from_utf8(out.stderr).unwrap()
}

fn file(name: &str, bytes: &[u8]) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

#[test]
fn a_bad_option_is_named_with_what_is_possible() {
    let sound = file("sound", b"some bytes");
    for (flag, value, possible) in [
        ("--mtu", "1000", "256, 512, 1024, 2048 or 4096"),
        ("--mtu", "-1", "256, 512, 1024, 2048 or 4096"),
        ("--qps", "0", "1..=64"),
        ("--qps", "65", "1..=64"),
        ("--qps", "-3", "1..=64"),
        ("--loss", "1", "from 0 to below 1"),
        ("--loss", "-0.1", "from 0 to below 1"),
        ("--loss", "much", "from 0 to below 1"),
        ("--seed", "-1", "from 0 to 18446744073709551615"),
        ("--seed", "x", "from 0 to 18446744073709551615"),
        ("--link", "0G", "from 1G to 400G"),
        ("--link", "-5G", "from 1G to 400G"),
        ("--link", "fast", "from 1G to 400G"),
        ("--width", "100", "64, 128, 256 or 512"),
    ] {
        let text = says(&[flag, value, &sound]);
        assert!(text.contains(flag) && text.contains(value) && text.contains(possible), "{flag} {value}: {text}");
    }
}

#[test]
fn a_bad_file_is_named() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let (empty, sound) = (file("empty", b""), file("moved", b"some bytes"));
    let large = file("large", b"");
    std::fs::File::options().write(true).open(&large).unwrap().set_len(5 << 30).unwrap();
    for (path, why) in [
        ("/nonexistent/file", "No such file"),
        (folder, "is not a file"),
        ("/dev/zero", "is not a file"),
        (empty.as_str(), "is empty"),
        (large.as_str(), "up to 4.0 GiB"),
    ] {
        let text = says(&[path]);
        assert!(text.contains(path) && text.contains(why), "{path}: {text}");
    }
    std::fs::remove_file(large).unwrap();
    let there = format!("{folder}/nowhere/x.pcapng");
    let text = says(&["--capture", &there, &sound]);
    assert!(text.contains(&there) && text.contains("cannot create"), "{text}");
    let text = says(&["--capture", &sound, &sound]);
    assert!(text.contains("would overwrite"), "{text}");
    assert_eq!(std::fs::read(&sound).unwrap(), b"some bytes");
}

#[test]
fn a_bad_file_of_fault_rules_is_named_with_its_rule() {
    let sound = file("with faults", b"some bytes");
    let rules = file("rules.toml", b"[[rule]]\naction = \"drop\"\nnth = 0\n");
    let text = says(&["--faults", &rules, &sound]);
    assert!(text.contains(&rules) && text.contains("rule 1") && text.contains("nth = 0"), "{text}");
    let text = says(&["--faults", "/no/such/rules", &sound]);
    assert!(text.contains("/no/such/rules"), "{text}");
}

#[test]
fn a_capture_does_not_overwrite_the_fault_rules() {
    let sound = file("beside rules", b"some bytes");
    let text = "[[rule]]\naction = \"drop\"\nprobability = 0.01\n";
    let rules = file("kept rules.toml", text.as_bytes());
    let said = says(&["--width", "64", "--faults", &rules, "--capture", &rules, &sound]);
    assert!(said.contains("would overwrite") && said.contains("kept rules.toml"), "{said}");
    assert!(std::fs::read(&rules).unwrap() == text.as_bytes(), "the rules are gone");
}

#[test]
fn what_has_no_end_or_is_written_to_already_is_refused() {
    let sound = file("endless rules", b"some bytes");
    let text = says(&["--faults", "/dev/zero", &sound]);
    assert!(text.contains("/dev/zero is no file of fault rules"), "{text}");
    // A pipe here; a file, or a pipe to another program, for a user.
    let text = says(&["--capture", "/dev/stdout", &sound]);
    assert!(text.contains("the figures would go into the capture"), "{text}");
}

/// As in `ferroce demo FILE 2>&1 | head -1`.
#[test]
fn nobody_has_to_listen() {
    let (sound, capture) = (file("unheard", b"some bytes"), file("unheard.pcapng", b""));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = Command::new(env!("CARGO_BIN_EXE_ferroce"))
        .args(["demo", "--width", "64", "--capture", &capture, &sound])
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    assert!(std::fs::metadata(capture).unwrap().len() > 100_000);
}

/// Its receive never completes, and its SEND only after all retries.
#[test]
fn a_digest_that_is_lost_for_ever_ends_the_demo() {
    let sound = file("lost digest", b"some bytes");
    let rules = file("no sends.toml", b"[[rule]]\nopcode = \"SEND_ONLY\"\naction = \"drop\"\n");
    let capture = file("lost digest.pcapng", b"");
    let mut demo = Command::new(env!("CARGO_BIN_EXE_ferroce"))
        .args(["demo", "--width", "64", "--faults", &rules, "--capture", &capture, &sound])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // It ends after 5 million cycles: half a minute, or many of them where all processors are busy.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(1800);
    let ended = loop {
        if let Some(status) = demo.try_wait().unwrap() {
            break Some(status);
        }
        if std::time::Instant::now() > end {
            demo.kill().unwrap();
            demo.wait().unwrap();
            break None;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    assert!(ended.is_some_and(|s| !s.success()), "it goes on for ever");
    let said = std::io::read_to_string(demo.stderr.take().unwrap()).unwrap();
    assert!(said.contains("SEND of the digest"), "{said}");
}

/// The table says what was lost, the slowest probe shows it, and the capture names it. Without a terminal there are no bars: each
/// phase is told of.
#[test]
fn what_is_lost_is_told_of() {
    let sound = file("lossy", &[3; 30_000]);
    let capture = file("lossy.pcapng", b"");
    let out = Command::new(env!("CARGO_BIN_EXE_ferroce"))
        .args(["demo", "--width", "64", "--mtu", "256", "--loss", "5e-2", "--capture", &capture, &sound])
        .output()
        .unwrap();
    let [figures, phases] = [&out.stdout, &out.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(out.status.success(), "{phases}");
    for phase in ["connecting 1 queue pair\n", "30000 bytes by WRITE", "30000 bytes by READ", "200 WRITEs of 64 bytes"]
    {
        assert!(phases.contains(phase), "{phase}: {phases}");
    }
    let figure = |name: &str| -> f64 {
        let row = figures.lines().find_map(|l| l.split_once(name)).unwrap_or_else(|| panic!("{name}: {figures}")).1;
        row.split_whitespace().next().unwrap().parse().unwrap()
    };
    assert_eq!(figure("file"), 30_000.0);
    assert!(figures.contains("n = 200"), "{figures}");
    assert!(figure("one way, max") > 2.0 * figure("one way, p50"), "{figures}");
    assert!(figures.contains(&format!("loss: {}", figure("faults on the link"))), "{figures}");
    let packets = String::from_utf8_lossy(&std::fs::read(&capture).unwrap()).into_owned();
    assert_eq!(packets.matches("lost on the link (--loss 0.05)").count() as f64, figure("faults on the link"));
}

/// One frame in a hundred is lost: each loss is made good by a NAK or by the fast timer, long before the verbs timeout, which would cost a retry.
#[test]
fn a_lossy_link_is_made_good_without_a_timeout() {
    let bytes: Vec<u8> = (0..150_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let sound = file("one in a hundred", &bytes);
    let capture = file("one in a hundred.pcapng", b"");
    let out = Command::new(env!("CARGO_BIN_EXE_ferroce"))
        .args(["demo", "--width", "64", "--mtu", "256", "--loss", "1e-2", "--capture", &capture, &sound])
        .output()
        .unwrap();
    let [figures, said] = [&out.stdout, &out.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(out.status.success(), "{said}");
    let row = |name: &str| figures.lines().find(|l| l.contains(name)).unwrap_or_else(|| panic!("{name}: {figures}"));
    // Of some 1,200 packets of the file alone.
    let number = |text: &str| -> u64 { text.split_whitespace().next().unwrap().parse().unwrap() };
    assert!(number(row("faults on the link").split_once("faults on the link").unwrap().1) > 10, "{figures}");
    let recovery = row("recovery");
    assert!(number(recovery.split_once("recovery").unwrap().1) > 10, "{recovery}");
    assert!(recovery.contains(", 0 by timeout"), "{recovery}");
}
