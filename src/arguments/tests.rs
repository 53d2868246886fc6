//! Schemas that people write, and hostile ones.

use serde_json::json;

use super::*;

fn checked(schema: &Value, args: &Value) -> Result<(), SandboxError> {
    check(&schema.to_string(), Some(&args.to_string()))
}

fn refused(schema: &Value, args: &Value) -> (Code, String) {
    let error = checked(schema, args).unwrap_err();
    assert_eq!(error.phase, Phase::Validate);
    (error.code, error.message)
}

#[test]
fn faults_are_told_with_their_place_and_what_was_expected() {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" }, "days": { "type": "array", "items": { "type": "integer", "minimum": 1 } } }, "required": ["city"], "additionalProperties": false });
    checked(&schema, &json!({ "city": "Bern", "days": [1, 2] })).unwrap();
    let (code, message) = refused(&schema, &json!({ "days": [1, "two", 0], "secret-key": "hunter2" }));
    assert_eq!(code, Code::InvalidArguments);
    for part in [
        r#"at "/days/1": value is not of type "integer""#,
        r#"at "/days/2": value is less than the minimum of 1"#,
        r#"at "": "city" is a required property"#,
        "'secret-key' was unexpected",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn only_the_first_faults_are_named() {
    let schema = json!({ "items": { "type": "string" } });
    let (_, message) = refused(&schema, &json!(vec![1; 20]));
    assert!(message.ends_with(r#"at "/4": value is not of type "string"; and 15 more"#), "{message}");
    let (_, message) = refused(&schema, &json!(vec![1; 60_000]));
    assert!(message.ends_with("too large to say where"), "{message}");
}

#[test]
fn the_draft_is_that_of_the_schema() {
    let tuple = |draft: &str| json!({ "$schema": draft, "items": [{ "type": "string" }] });
    for draft in ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft-07/schema"] {
        assert_eq!(refused(&tuple(draft), &json!([1])).0, Code::InvalidArguments, "{draft}");
    }
    let (code, message) = refused(&tuple("https://json-schema.org/draft/2020-12/schema"), &json!([1]));
    assert_eq!(code, Code::InvalidConfig);
    assert!(message.contains("\"/items\""), "{message}");
    let (code, message) = refused(&tuple("https://schemas.example/own"), &json!([1]));
    assert_eq!(code, Code::InvalidConfig);
    assert!(message.contains("https://schemas.example/own"), "{message}");
    let prefix = json!({ "prefixItems": [{ "type": "string" }] });
    assert_eq!(refused(&prefix, &json!([1])).0, Code::InvalidArguments, "2020-12 without a word");
}

#[test]
fn a_schema_that_is_none_says_where() {
    for (schema, place) in [
        (json!({ "properties": { "a": { "type": "text" } } }), "/properties/a/type"),
        (json!({ "properties": { "a": { "pattern": "(" } } }), "pattern"),
        (json!([]), "cannot be used"),
        (json!({ "$schema": 7 }), "$schema"),
    ] {
        let (code, message) = refused(&schema, &json!({ "a": "x" }));
        assert_eq!(code, Code::InvalidConfig, "{schema}");
        assert!(message.contains(place), "{schema}: {message}");
    }
    checked(&json!(true), &json!({})).unwrap();
    assert_eq!(refused(&json!(false), &json!({})).0, Code::InvalidArguments);
}

#[test]
fn a_reference_leads_into_the_schema_or_is_refused_by_name() {
    let text = json!({ "type": "string" });
    for schema in [
        json!({ "$ref": "#/$defs/a%20b", "$defs": { "a b": text } }),
        json!({ "$ref": "#text", "$defs": { "t": { "$anchor": "text", "type": "string" } } }),
        json!({ "$id": "https://schemas.example/a", "$ref": "/b", "$defs": { "b": { "$id": "/b", "type": "string" } } }),
        json!({ "$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#t", "definitions": { "t": { "$id": "#t", "type": "string" } } }),
    ] {
        checked(&schema, &json!("x")).unwrap();
        assert_eq!(refused(&schema, &json!(1)).0, Code::InvalidArguments, "{schema}");
    }
    for reference in
        ["https://schemas.example/x.json", "file:///etc/passwd", "other.json#/a", "#/$defs/none", "#none"]
    {
        let (code, message) = refused(&json!({ "properties": { "a": { "$ref": reference } } }), &json!({}));
        assert_eq!(code, Code::InvalidConfig);
        assert!(message.contains(reference), "{message}");
    }
}

#[test]
fn a_schema_for_trees_refers_to_itself() {
    let schema = json!({ "properties": { "left": { "$ref": "#" }, "right": { "$ref": "#" }, "name": { "type": "string" } }, "additionalProperties": false });
    let mut tree = json!({ "name": "leaf" });
    for _ in 0..100 {
        tree = json!({ "left": tree, "name": "n" });
    }
    checked(&schema, &tree).unwrap();
    assert_eq!(refused(&schema, &json!({ "left": { "right": { "name": 1 } } })).0, Code::InvalidArguments);
}

#[test]
fn hostile_schemas_end_soon() {
    let twice = |next: &str| json!({ "anyOf": [{ "$ref": next }, { "$ref": next }] });
    let doubling: serde_json::Map<_, _> = (0..30)
        .map(|at| (format!("a{at}"), twice(&format!("#/$defs/a{}", at + 1))))
        .chain([("a30".to_owned(), json!(false))])
        .collect();
    let chain: serde_json::Map<_, _> = (0..3000)
        .map(|at| (format!("a{at}"), json!({ "$ref": format!("#/$defs/a{}", at + 1) })))
        .chain([("a3000".to_owned(), json!(true))])
        .collect();
    let stairs: serde_json::Map<_, _> = (0..3000)
        .map(|at| {
            (format!("a{at}"), json!({ "properties": { "a": { "$ref": format!("#/$defs/a{}", at + 1) } } }))
        })
        .chain([("a3000".to_owned(), json!(true))])
        .collect();
    let mut deep = json!({});
    for _ in 0..60 {
        deep = json!({ "a": deep });
    }
    for (schema, args, named) in [
        (json!({ "$ref": "#" }), json!(1), "leads back to itself"),
        (json!({ "allOf": [{ "not": { "$ref": "#" } }] }), json!(1), "leads back to itself"),
        (
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
            json!(1),
            "leads back to itself",
        ),
        (json!({ "$dynamicAnchor": "n", "$dynamicRef": "#n" }), json!(1), "leads back to itself"),
        (json!({ "$ref": "#/$defs/a0", "$defs": doubling }), json!(1), "steps"),
        (
            json!({ "properties": { "a": { "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] } } }),
            deep.clone(),
            "steps",
        ),
        (json!({ "$ref": "#/$defs/a0", "$defs": chain }), json!(1), "refer to each other"),
        (
            json!({ "properties": { "a": { "pattern": "((\\w{1000}){1000}){1000}" } } }),
            json!({ "a": "x" }),
            "pattern",
        ),
        (
            json!({ "patternProperties": (0..200).map(|at| (format!("^{at}"), json!(true))).collect::<serde_json::Map<_, _>>() }),
            json!({}),
            "200 patterns",
        ),
        (json!({ "description": "x".repeat(300_000) }), json!({}), "bytes as JSON"),
    ] {
        let (code, message) = refused(&schema, &args);
        assert_eq!(code, Code::InvalidConfig, "{message}");
        assert!(message.contains(named), "{named}: {message}");
    }
    // A long way through properties is compiled, on a stack with room for it.
    checked(&json!({ "$ref": "#/$defs/a0", "$defs": stairs }), &deep).unwrap();
    let backtracking = json!({ "pattern": "^(a+)+$" });
    assert_eq!(refused(&backtracking, &json!(format!("{}b", "a".repeat(100_000)))).0, Code::InvalidArguments);
}

#[test]
fn arguments_that_only_javascript_can_write_are_checked() {
    let schema = r#"{ "type": "object", "properties": { "a": { "type": "string", "maxLength": 3 } } }"#;
    check(schema, Some(r#"{"a":"\ud800\\ud"}"#)).unwrap_err();
    check(schema, Some(r#"{"a":"\ud800x"}"#)).unwrap();
    check(schema, Some(r#"{"a":"\\ud"}"#)).unwrap();
    assert_eq!(without_halves(r"\\\ud834\ud800é\u00e9"), r"\\\ufffd\ufffdé\u00e9");
    let error = check(schema, None).unwrap_err();
    assert!(error.message.contains("has no arguments"), "{}", error.message);
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let error = check("{}", Some(&deep)).unwrap_err();
    assert_eq!(error.code, Code::InvalidArguments);
    assert!(error.message.contains("127 levels"), "{}", error.message);
}

#[test]
fn formats_are_notes() {
    checked(&json!({ "format": "email" }), &json!("no address")).unwrap();
}

#[test]
fn a_schema_is_compiled_once_and_the_table_is_bounded() {
    let compiled = Compiled::default();
    let first = compiled.schema("{}").unwrap();
    assert!(Arc::ptr_eq(&first, &compiled.schema("{}").unwrap()));
    assert!(!Arc::ptr_eq(&first, &compiled.schema("{ }").unwrap()));
    for number in 0..MAX_KEPT_SCHEMAS {
        compiled.schema(&format!(r#"{{"minimum":{number}}}"#)).unwrap();
    }
    assert_eq!(compiled.table().entries.len(), MAX_KEPT_SCHEMAS);
    assert!(!Arc::ptr_eq(&first, &compiled.schema("{}").unwrap()), "the oldest went");
    let patterns = |number: usize| {
        let patterns: Vec<_> = (0..100).map(|at| json!({ "pattern": format!("{number}-{at}") })).collect();
        json!({ "anyOf": patterns }).to_string()
    };
    (0..4).for_each(|number| drop(compiled.schema(&patterns(number)).unwrap()));
    let table = compiled.table();
    assert!(table.total_bytes <= MAX_KEPT_BYTES && table.entries.len() < 10, "{}", table.entries.len());
}
