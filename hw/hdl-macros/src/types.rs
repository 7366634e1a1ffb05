//! `LogicStruct` and `LogicState`: structs and enums as signal types, with pack and unpack.
use crate::common::*;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::*;

pub fn structure(d: &DeriveInput) -> R<TokenStream> {
    let Data::Struct(DataStruct { fields: Fields::Named(fields), .. }) = &d.data else {
        return err(d, "LogicStruct is for structs with named fields");
    };
    let (name, text) = (&d.ident, d.ident.to_string());
    let names: Vec<_> = fields.named.iter().map(|f| f.ident.as_ref().unwrap()).collect();
    let types: Vec<_> = fields.named.iter().map(|f| &f.ty).collect();
    let strings = names.iter().map(|n| n.to_string());
    // RustHDL's names: kernels ask for offsets by them
    let offset_names = names.iter().map(|n| format_ident!("get_my_offset_{}", n));
    let below = (0..names.len()).map(|i| &types[..i]);
    let offsets = below.map(|t| quote!(0 #(+ <#t as ::hdl::rt::Synth>::BITS)*));
    let mut generics = d.generics.clone();
    for p in generics.type_params_mut() {
        p.bounds.push(parse_quote!(::hdl::rt::Pack))
    }
    let (impl_generics, type_generics, bounds) = generics.split_for_impl();
    Ok(quote! {
        impl #impl_generics #name #type_generics #bounds {
            #(
                #[doc(hidden)]
                pub fn #offset_names(&self) -> usize {
                    #offsets
                }
            )*
        }
        impl #impl_generics ::hdl::rt::Synth for #name #type_generics #bounds {
            const BITS: usize = 0 #(+ <#types as ::hdl::rt::Synth>::BITS)*;
            fn descriptor() -> ::hdl::rt::TypeDescriptor {
                ::hdl::rt::TypeDescriptor {
                    name: #text.to_string(),
                    kind: ::hdl::rt::TypeKind::Composite(::std::vec![#(::std::boxed::Box::new(::hdl::rt::TypeField {
                        fieldname: #strings.to_string(),
                        kind: <#types as ::hdl::rt::Synth>::descriptor(),
                    })),*]),
                }
            }
            fn vcd(self) -> ::hdl::rt::VCDValue {
                ::hdl::rt::VCDValue::Composite(::std::vec![#(::std::boxed::Box::new(self.#names.vcd())),*])
            }
            fn verilog(self) -> ::hdl::rt::VerilogLiteral {
                ::hdl::rt::packed_literal(&self)
            }
        }
        impl #impl_generics ::hdl::rt::Pack for #name #type_generics #bounds {
            fn put(&self, bits: &mut ::std::vec::Vec<bool>) {
                #(::hdl::rt::Pack::put(&self.#names, bits);)*
            }
            fn take(bits: &mut dyn ::core::iter::Iterator<Item = bool>) -> Self {
                Self { #(#names: ::hdl::rt::Pack::take(bits)),* }
            }
        }
    })
}

pub fn enumeration(d: &DeriveInput) -> R<TokenStream> {
    let Data::Enum(e) = &d.data else {
        return err(d, "LogicState is for enums");
    };
    if e.variants.len() < 2 {
        return err(d, "a LogicState needs at least two variants");
    }
    for v in &e.variants {
        if !v.fields.is_empty() {
            return err(v, "a variant of a LogicState cannot have fields");
        }
        if let Some((_, x)) = &v.discriminant {
            return err(x, "variants of a LogicState are numbered from 0: no discriminants");
        }
    }
    let (name, text) = (&d.ident, d.ident.to_string());
    let variants: Vec<_> = e.variants.iter().map(|v| &v.ident).collect();
    let strings: Vec<_> = variants.iter().map(|v| v.to_string()).collect();
    let qualified = strings.iter().map(|v| format!("{text}::{v}"));
    let (first, n, numbers) = (variants[0], variants.len(), 0..variants.len());
    Ok(quote! {
        impl ::core::default::Default for #name {
            fn default() -> Self {
                #name::#first
            }
        }
        impl ::hdl::rt::Synth for #name {
            const BITS: usize = ::hdl::rt::clog2(#n);
            fn descriptor() -> ::hdl::rt::TypeDescriptor {
                ::hdl::rt::TypeDescriptor {
                    name: #text.to_string(),
                    kind: ::hdl::rt::TypeKind::Enum(::std::vec![#(#qualified.to_string()),*]),
                }
            }
            fn vcd(self) -> ::hdl::rt::VCDValue {
                ::hdl::rt::VCDValue::String(match self { #(#name::#variants => #strings),* }.into())
            }
            fn verilog(self) -> ::hdl::rt::VerilogLiteral {
                (self as usize).into()
            }
        }
        impl ::hdl::rt::Pack for #name {
            fn put(&self, bits: &mut ::std::vec::Vec<bool>) {
                let n = *self as usize;
                bits.extend((0..<Self as ::hdl::rt::Synth>::BITS).map(|i| n >> i & 1 == 1))
            }
            fn take(bits: &mut dyn ::core::iter::Iterator<Item = bool>) -> Self {
                let n = (0..<Self as ::hdl::rt::Synth>::BITS).fold(0usize, |n, i| n | (bits.next().unwrap() as usize) << i);
                match n { #(#numbers => #name::#variants,)* _ => ::core::panic!("{n} is no variant of {}", #text) }
            }
        }
    })
}
