//! `#[hdl_fn]`: `fn f` is the model, `f::hdl(..)` of a type of the same name builds the hardware, and one `use` imports
//! both.
use crate::common::*;
use crate::hardware::Hardware;
use crate::sim::Sim;
use proc_macro2::TokenStream;
use quote::quote;
use syn::{visit_mut::VisitMut, *};

pub fn expand(has_arguments: bool, f: &ItemFn) -> R<TokenStream> {
    if has_arguments {
        return err(&f.sig, "#[hdl_fn] takes no arguments");
    }
    let (mut arguments, mut binds) = (vec![], vec![]);
    for a in &f.sig.inputs {
        let FnArg::Typed(a) = a else {
            return err(a, "#[hdl_fn] is for free functions; a kernel is a method");
        };
        let Pat::Ident(p) = &*a.pat else {
            return err(&a.pat, "plain argument names only in #[hdl_fn]");
        };
        if p.mutability.is_some() {
            return err(p, "`mut` arguments are not supported: use `let mut`");
        }
        let (n, name, t) = (&p.ident, p.ident.to_string(), &*a.ty);
        match t {
            t if is_static(t) => arguments.push(quote!(#n: #t)),
            Type::Path(_) => {
                arguments.push(quote!(#n: impl ::hdl::rt::ToEx<#t>));
                binds.push(quote!(let #n = ::hdl::rt::argument::<#t>(#name, #n);))
            }
            t => {
                let hardware = hardware_type(t)?;
                let bind = if let Type::Array(_) = t { quote!(bind_array) } else { quote!(bind) };
                arguments.push(quote!(#n: #hardware));
                binds.push(quote!(let #n = ::hdl::rt::#bind(#name, #n);))
            }
        }
    }
    let ReturnType::Type(_, result) = &f.sig.output else {
        return err(&f.sig, "an #[hdl_fn] is pure: it must return a value");
    };
    let (vis, name, text) = (&f.vis, &f.sig.ident, f.sig.ident.to_string());
    let mut body = Hardware::default().block_value(&f.block, Some(&text))?;
    if matches!(**result, Type::Path(_)) && !is_static(result) {
        body = quote!(::hdl::rt::lift::<#result>(#body))
    }
    let result = hardware_type(result)?;
    let (generics, _, bounds) = f.sig.generics.split_for_impl();
    let line = line(name.span());
    let mut model = f.clone();
    Sim.visit_item_fn_mut(&mut model);
    Ok(quote! {
        #[allow(unused_parens, unused_braces, clippy::all)]
        #model
        #[allow(non_camel_case_types)]
        #[doc(hidden)]
        #vis struct #name {}
        impl #name {
            #[doc(hidden)]
            #[allow(unused, unused_parens, unused_braces, clippy::all)]
            pub fn hdl #generics (#(#arguments),*) -> #result #bounds {
                #(#binds)*
                let __call = ::hdl::rt::call(#text, ::core::file!(), #line);
                #body
            }
        }
    })
}
