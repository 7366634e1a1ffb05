//! The macros of `hdl`, for authors of RTL: `#[kernel]` and `#[hdl_fn]` keep the Rust body as the simulation model and
//! write, beside it, Rust code that builds the hardware (see `hdl::rt`); the derives give structs and enums their bits.
//! Everything that has no hardware meaning is a compile error at its own place.
mod common;
mod function;
mod hardware;
mod kernel;
mod pattern;
mod place;
mod sim;
mod statement;
mod types;
mod value;
use proc_macro::TokenStream;
use quote::quote;
use syn::{DeriveInput, ItemFn, parse_macro_input};

/// Makes `fn update(&mut self)` of `impl Logic for ..` the behaviour of a block, in simulation and in hardware.
/// `hw/hdl/README.md` says what the body may contain.
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let f = parse_macro_input!(item as ItemFn);
    // after an error, a function of the same signature remains: rustc then reports nothing but our message
    kernel::expand(!attribute.is_empty(), &f).unwrap_or_else(|e| placeholder(&f, e)).into()
}

/// Makes a pure function usable in kernels, and leaves it callable from plain Rust.
#[proc_macro_attribute]
pub fn hdl_fn(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let f = parse_macro_input!(item as ItemFn);
    function::expand(!attribute.is_empty(), &f).unwrap_or_else(|e| placeholder(&f, e)).into()
}
fn placeholder(f: &ItemFn, e: syn::Error) -> proc_macro2::TokenStream {
    let (e, vis, sig) = (e.to_compile_error(), &f.vis, &f.sig);
    quote! { #[allow(unused)] #vis #sig { #e } }
}

/// A struct as a signal type: the first field has the least significant bits. Fields are anything that derives this or
/// `LogicState`, `Bits<N>` or `Bit`; generics are allowed. Needs `Copy, Clone, Debug, PartialEq, Default` as well.
/// Unlike RustHDL's derive of this name, also gives `pack` and `unpack`.
#[proc_macro_derive(LogicStruct)]
pub fn logic_struct(item: TokenStream) -> TokenStream {
    let d = parse_macro_input!(item as DeriveInput);
    types::structure(&d).unwrap_or_else(|e| e.to_compile_error()).into()
}

/// An enum without data as a signal type: variants are numbered from 0, and the first is the default and reset value.
/// Needs `Copy, Clone, Debug, PartialEq` as well.
#[proc_macro_derive(LogicState)]
pub fn logic_state(item: TokenStream) -> TokenStream {
    let d = parse_macro_input!(item as DeriveInput);
    types::enumeration(&d).unwrap_or_else(|e| e.to_compile_error()).into()
}
