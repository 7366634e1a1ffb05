//! Levels of a netlist small enough to count by hand.

use super::levels::Levels;
use super::netlist::Netlist;
use super::walls::Walls;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Cell of a type with its inputs and outputs, each `(port, nets)`.
fn cell(kind: &str, inputs: &[(&str, &[usize])], outputs: &[(&str, &[usize])]) -> serde_json::Value {
    let ports = |list: &[(&str, &[usize])], direction: &str| -> Vec<(String, String, Vec<usize>)> {
        list.iter().map(|(p, n)| (p.to_string(), direction.to_string(), n.to_vec())).collect()
    };
    let all: Vec<_> = ports(inputs, "input").into_iter().chain(ports(outputs, "output")).collect();
    let directions: serde_json::Map<_, _> = all.iter().map(|(p, d, _)| (p.clone(), d.clone().into())).collect();
    let connections: serde_json::Map<_, _> = all.iter().map(|(p, _, n)| (p.clone(), n.clone().into())).collect();
    serde_json::json!({ "type": kind, "port_directions": directions, "connections": connections })
}

fn module(
    ports: &[(&str, &str, &[usize])],
    cells: Vec<(&str, serde_json::Value)>,
    names: &[(&str, &[usize])],
) -> serde_json::Value {
    let ports: serde_json::Map<_, _> =
        ports.iter().map(|(n, d, b)| (n.to_string(), serde_json::json!({ "direction": d, "bits": b }))).collect();
    let cells: serde_json::Map<_, _> = cells.into_iter().map(|(n, c)| (n.to_string(), c)).collect();
    let names: serde_json::Map<_, _> =
        names.iter().map(|(n, b)| (n.to_string(), serde_json::json!({ "hide_name": 0, "bits": b }))).collect();
    serde_json::json!({ "ports": ports, "cells": cells, "netnames": names })
}

fn write(file: &str, name: &str, module: serde_json::Value) -> PathBuf {
    let path = Path::new(&std::env::temp_dir()).join(format!("ferroce-levels-{}-{file}.json", std::process::id()));
    std::fs::write(&path, serde_json::json!({ "modules": { name: module } }).to_string()).unwrap();
    path
}

/// `a` (register) -> LUT -> LUT -> carry lane 1 -> `b` (register); `b` -> LUT -> `b`; a RAM read straight into `c`, and by a LUT.
fn counted() -> serde_json::Value {
    let cells = vec![
        ("ff_a", cell("FDRE", &[("C", &[1]), ("D", &[2])], &[("Q", &[10])])),
        ("l1", cell("LUT2", &[("I0", &[10]), ("I1", &[3])], &[("O", &[11])])),
        ("l2", cell("LUT6", &[("I0", &[11])], &[("O", &[12])])),
        // Lane 0 sees nothing of net 12, lane 1 does.
        (
            "carry",
            cell("CARRY4", &[("S", &[3, 12]), ("DI", &[3, 3]), ("CI", &[3])], &[("O", &[13, 14]), ("CO", &[15, 16])]),
        ),
        ("ff_b", cell("FDRE", &[("C", &[1]), ("D", &[14]), ("CE", &[17])], &[("Q", &[18])])),
        ("l3", cell("LUT1", &[("I0", &[18])], &[("O", &[17])])),
        ("ff_low", cell("FDRE", &[("C", &[1]), ("D", &[13])], &[("Q", &[19])])),
        (
            "u_rows.mem.0.0",
            cell("RAMB36E2", &[("CLKARDCLK", &[1]), ("ADDRARDADDR", &[18])], &[("DOUTADOUT", &[20, 21])]),
        ),
        ("ff_c", cell("FDRE", &[("C", &[1]), ("D", &[20])], &[("Q", &[22])])),
        ("l4", cell("LUT3", &[("I0", &[21])], &[("O", &[23])])),
    ];
    let names: &[(&str, &[usize])] = &[("a", &[10]), ("b", &[18]), ("low", &[19]), ("c", &[22]), ("y", &[23])];
    module(&[("clock", "input", &[1]), ("x", "input", &[2, 3]), ("y", "output", &[23])], cells, names)
}

#[test]
fn levels_loops_and_bare_rams_are_counted() {
    let path = write("one", "m", counted());
    let n = Netlist::read(&path, "m", &HashMap::new()).unwrap();
    assert_eq!((n.area[0].lut, n.area[0].ff, n.area[0].half_rams), (4, 4, 2));
    let l = Levels::of(&n, 1, 0).unwrap();
    let b = &l.blocks[0];
    assert_eq!((b.deepest, b.inside, b.looped, b.over, b.bare_rams), (2, 2, 1, 1, 1));
    assert_eq!((l.paths[0].levels, l.paths[0].from.as_str(), l.paths[0].to.as_str()), (2, "a", "b"));
    assert_eq!((l.loops.len(), l.loops[0].from.as_str()), (1, "b"));
    assert_eq!(l.bare_rams, ["rows"]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_walls_count_to_and_from_the_ports() {
    let path = write("walls", "m", counted());
    let walls = Walls::of(&Netlist::read(&path, "m", &HashMap::new()).unwrap()).unwrap();
    assert_eq!(walls.inward, [(2, "x".to_string())]);
    assert_eq!(walls.outward, [(1, "y".to_string())]);
    assert!(walls.through.is_empty());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn paths_count_through_blocks() {
    // Two of these in a row: register, LUT; the second's LUT ends in its register.
    let part = module(
        &[("clock", "input", &[1]), ("s", "input", &[2]), ("m", "output", &[5])],
        vec![
            ("l", cell("LUT1", &[("I0", &[2])], &[("O", &[3])])),
            ("ff", cell("FDRE", &[("C", &[1]), ("D", &[3])], &[("Q", &[4])])),
            ("k", cell("LUT1", &[("I0", &[4])], &[("O", &[5])])),
        ],
        &[("held", &[4])],
    );
    let top = module(
        &[("clock", "input", &[1]), ("x", "input", &[2]), ("y", "output", &[7])],
        vec![
            ("u_one", cell("Part", &[("clock", &[1]), ("s", &[2])], &[("m", &[3])])),
            ("glue", cell("LUT1", &[("I0", &[3])], &[("O", &[4])])),
            ("u_two", cell("Part", &[("clock", &[1]), ("s", &[4])], &[("m", &[7])])),
        ],
        &[("x", &[2])],
    );
    let (top, part) = (write("top", "top", top), write("part", "Part", part));
    let n = Netlist::read(&top, "top", &HashMap::from([("Part".into(), part.clone())])).unwrap();
    assert_eq!(n.blocks, ["top", "one", "two"]);
    assert_eq!(n.area.iter().map(|a| a.lut).collect::<Vec<_>>(), [1, 2, 2]);
    let l = Levels::of(&n, 8, 6).unwrap();
    let path = &l.paths[0];
    assert_eq!((path.levels, path.from.as_str(), path.to.as_str()), (3, "one.held", "two.held"));
    assert_eq!((l.blocks[2].deepest, l.blocks[2].inside, l.blocks[1].deepest), (3, 0, 1));
    [top, part].iter().for_each(|p| std::fs::remove_file(p).unwrap());
}

#[test]
fn a_combinational_loop_is_an_error_with_names() {
    let cells = vec![
        ("l1", cell("LUT2", &[("I0", &[2]), ("I1", &[4])], &[("O", &[3])])),
        ("l2", cell("LUT1", &[("I0", &[3])], &[("O", &[4])])),
    ];
    let m = module(&[("x", "input", &[2]), ("y", "output", &[4])], cells, &[("there", &[3]), ("back", &[4])]);
    let path = write("loop", "m", m);
    let n = Netlist::read(&path, "m", &HashMap::new()).unwrap();
    let error = Levels::of(&n, 8, 6).err().unwrap().to_string();
    assert!(error.contains("there") && error.contains("back"), "{error}");
    std::fs::remove_file(path).unwrap();
}
