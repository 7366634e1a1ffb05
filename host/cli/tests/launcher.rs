//! What the launcher (`./ferroce`) can say at once, it says before it installs or builds anything, wherever it is called from.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// An empty folder.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// The launcher as on a machine where nothing is installed or built yet. It leaves nothing behind.
fn launch(launcher: &Path, folder: &Path, args: &[&str]) -> Output {
    let [home, target] = ["home", "target"].map(|n| folder.join(n));
    std::fs::create_dir_all(&home).unwrap();
    let out = Command::new(launcher)
        .args(args)
        .current_dir(folder)
        .env_remove("XDG_CACHE_HOME")
        .env("HOME", &home)
        .env("CARGO_TARGET_DIR", &target)
        .output()
        .unwrap();
    assert!(!target.exists() && std::fs::read_dir(&home).unwrap().next().is_none(), "{args:?} left something");
    out
}

fn says(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

#[test]
fn wrong_commands_and_files_are_named_before_anything_is_built() {
    let folder = folder("wrong");
    std::fs::write(folder.join("rules.toml"), "").unwrap();
    for (args, names) in [
        (&["burn"][..], "no command is called burn"),
        (&["demo"], "./ferroce demo FILE"),
        (&["demo", "nothing"], "can be read: nothing"),
        (&["demo", "--mtu", "1024", "."], "can be read: --mtu 1024 ."),
        (&["setup", "now"], "takes no options"),
    ] {
        let out = launch(&top().join("ferroce"), &folder, args);
        assert!(!out.status.success(), "{args:?} was taken");
        assert!(says(&out).contains(names), "{args:?}: {}", says(&out));
    }
}

#[test]
fn help_and_version_need_nothing_from_any_folder_and_through_a_link() {
    let folder = folder("help");
    let link = folder.join("linked");
    std::os::unix::fs::symlink(top().join("ferroce"), &link).unwrap();
    for launcher in [top().join("ferroce"), link] {
        for args in [&["help"][..], &[], &["test", "--help"], &["setup", "-h"]] {
            let out = launch(&launcher, &folder, args);
            assert!(out.status.success() && says(&out).contains("demo FILE"), "{args:?}: {}", says(&out));
        }
        let out = launch(&launcher, &folder, &["--version"]);
        assert_eq!(says(&out), concat!("ferroce ", env!("CARGO_PKG_VERSION"), "\n"));
    }
}

#[test]
fn without_a_home_it_says_what_to_set() {
    let out = Command::new(top().join("ferroce")).arg("setup").env_remove("HOME").env_remove("XDG_CACHE_HOME").output();
    let out = out.unwrap();
    assert!(!out.status.success() && says(&out).contains("export HOME="), "{}", says(&out));
    let out = Command::new(top().join("ferroce")).arg("setup").env("XDG_CACHE_HOME", "/dev/null").output().unwrap();
    assert!(!out.status.success() && says(&out).contains("cannot write to /dev/null/ferroce"), "{}", says(&out));
}
