//! `#[kernel]`: the model and the hardware of a block.
use crate::common::*;
use crate::hardware::Hardware;
use crate::sim::Sim;
use proc_macro2::TokenStream;
use quote::quote;
use syn::{visit_mut::VisitMut, *};

pub fn expand(has_arguments: bool, f: &ItemFn) -> R<TokenStream> {
    if has_arguments {
        return err(&f.sig, "#[kernel] takes no arguments");
    }
    let takes_self = matches!(f.sig.inputs.first(),
        Some(FnArg::Receiver(r)) if r.reference.is_some() && r.mutability.is_some());
    if f.sig.ident != "update" || f.sig.inputs.len() != 1 || !takes_self {
        return err(&f.sig, "#[kernel] goes on `fn update(&mut self)` in `impl Logic for ..`");
    }
    let hardware = Hardware::default().block(&f.block)?;
    let mut model = f.clone();
    Sim.visit_item_fn_mut(&mut model);
    Ok(quote! {
        #[allow(unreachable_patterns, unused_parens, unused_braces, clippy::all)]
        #model
        #[allow(unused, unreachable_patterns, unused_parens, unused_braces, clippy::all)]
        fn hdl(&self) -> ::hdl::rt::Verilog {
            ::hdl::rt::kernel(::core::any::type_name::<Self>(), ::core::file!(), || { #hardware })
        }
    })
}
