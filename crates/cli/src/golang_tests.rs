//! `testdata/golang.golden`: what Go 1.25 answered, a line each: function, input and answer in hexadecimal, errors as
//! `error: TEXT`.

use crate::flags::Value;
use crate::{Kind, golang, json, words};

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(&String::from_utf8_lossy(pair), 16).expect("hexadecimal"))
        .collect()
}

fn answer(outcome: Result<String, String>) -> Vec<u8> {
    words::bytes(&outcome.unwrap_or_else(|why| format!("error: {why}")))
}

#[test]
fn as_go_answers() {
    let mut wrong = Vec::new();
    for line in include_str!("testdata/golang.golden").lines() {
        let mut parts = line.split(' ');
        let (Some(function), Some(input), Some(expected)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (bytes, expected) = (unhex(input), unhex(expected));
        let input = words::from_bytes(bytes.clone());
        let number = || input.parse::<f64>().expect("a number");
        let found = match function {
            "quote" => answer(Ok(golang::quote(&input))),
            "raw" => answer(Ok(golang::quote_raw(&input))),
            "json" => {
                assert_eq!(json::text(&input), json::text_of_bytes(&bytes));
                answer(Ok(json::text(&input)))
            }
            "unquote" => golang::unquote(&input).unwrap_or_else(|why| format!("error: {why}").into_bytes()),
            "duration" => answer(golang::parse_duration(&input).map(golang::format_duration)),
            "format" => answer(Ok(golang::format_duration(input.parse().expect("a number")))),
            "int0" => answer(golang::parse_int(&input, 0).map(|value| value.to_string())),
            "int10" => answer(golang::parse_int(&input, 10).map(|value| value.to_string())),
            "int16" => answer(golang::parse_int(&input, 16).map(|value| value.to_string())),
            "uint0" => answer(golang::parse_uint(&input, 0).map(|value| value.to_string())),
            "float" => answer(golang::parse_float(&input).map(golang::format_float)),
            "showfloat" => answer(Ok(golang::format_float(number()))),
            "jsonfloat" => answer(Ok(json::float(number()))),
            "bool" => answer(golang::parse_bool(&input).map(|value| value.to_string())),
            "csv" => {
                let shown = Value::parse(Kind::List, &input).map(|value| value.shown());
                answer(
                    shown.map_err(|why| format!("invalid argument {} for \"--l\" flag: {why}", golang::quote(&input))),
                )
            }
            other => panic!("{other}: no such function"),
        };
        if found != expected {
            let [input, expected, found] =
                [bytes, expected, found].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            wrong.push(format!("{function} {input:?}: Go {expected:?}, we {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
