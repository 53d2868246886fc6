//! What a schema can take: which of its parts apply to a value, and to what is in it. Pure.
//!
//! The graph says at least as much as the validator does: where it is not sure that a part applies, it says that it does.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Parts of a schema.
const MAX_NODES: usize = 20_000;
/// Parts that apply to one value inside of each other.
const MAX_LEVELS_PER_VALUE: usize = 64;
/// Parts and values inside of each other.
const MAX_LEVELS: usize = 2_000;
/// Patterns of a schema.
const MAX_PATTERNS: usize = 128;
/// Characters of a text for which a pattern takes one step.
const PATTERN_BYTES_PER_STEP: usize = 64;

/// Keywords whose value is a schema, or a list or an object of schemas, for the same value.
const SAME: [&str; 9] =
    ["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"];
/// For each member of an object, and for its name.
const MEMBERS: [&str; 4] =
    ["additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"];
/// For each item of an array.
const ITEMS: [&str; 4] = ["additionalItems", "contains", "unevaluatedItems", "items"];
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// See the module.
pub(super) struct Graph {
    nodes: Vec<Node>,
    patterns: usize,
}

/// What applying a schema to some arguments takes, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) steps: usize,
    pub(super) levels: usize,
}

#[derive(Default)]
struct Node {
    same: Vec<usize>,
    properties: HashMap<String, usize>,
    members: Vec<usize>,
    items: Vec<usize>,
    prefix: Vec<usize>,
    /// For each text.
    patterns: usize,
    /// For each name of a member.
    name_patterns: usize,
    /// Values of `enum`.
    options: usize,
}

/// A value of the document, by its address: nodes are shared by all who refer to them.
type Address = *const Value;

struct Builder<'s> {
    root: &'s Value,
    /// The resource that a value lies in, where that is not the document's own.
    resources: HashMap<Address, &'s Value>,
    /// Resources by their `$id`, as it is written.
    ids: Vec<(&'s str, &'s Value)>,
    /// Values by the name of their anchor.
    anchors: HashMap<&'s str, Vec<&'s Value>>,
    indexes: HashMap<Address, usize>,
    open: Vec<&'s Value>,
}

impl Graph {
    /// # Errors
    ///
    /// Says in what the schema is too large, or which reference leads nowhere or round in a circle.
    pub(super) fn new(root: &Value) -> Result<Self, String> {
        let mut builder = Builder {
            root,
            resources: HashMap::new(),
            ids: Vec::new(),
            anchors: HashMap::new(),
            indexes: HashMap::new(),
            open: Vec::new(),
        };
        builder.survey(root, root);
        builder.index(root)?;
        let mut nodes = Vec::new();
        while let Some(schema) = builder.open.get(nodes.len()).copied() {
            nodes.push(builder.node(schema)?);
        }
        let patterns = nodes.iter().map(|node| node.patterns + node.name_patterns).sum();
        if patterns > MAX_PATTERNS {
            return Err(format!("it has {patterns} patterns, at most {MAX_PATTERNS} can be checked"));
        }
        let graph = Self { nodes, patterns };
        graph.refuse_circles()?;
        Ok(graph)
    }

    pub(super) fn patterns(&self) -> usize {
        self.patterns
    }

    /// # Errors
    ///
    /// Says that it takes more steps than `most`, or more levels than any stack has room for.
    pub(super) fn work(&self, args: &Value, most: usize) -> Result<Work, String> {
        let mut work = Work { steps: 0, levels: 0 };
        let mut open = vec![(0, args, 1)];
        while let Some((index, value, level)) = open.pop() {
            let node = &self.nodes[index];
            work.levels = work.levels.max(level);
            work.steps += 1 + node.options;
            match value {
                Value::String(text) => {
                    work.steps += node.patterns * (1 + text.len() / PATTERN_BYTES_PER_STEP);
                }
                Value::Object(members) => {
                    for (name, member) in members {
                        work.steps += node.name_patterns * (1 + name.len() / PATTERN_BYTES_PER_STEP);
                        let named = node.properties.get(name);
                        open.extend(
                            named.into_iter().chain(&node.members).map(|next| (*next, member, level + 1)),
                        );
                    }
                }
                Value::Array(items) => {
                    for (at, item) in items.iter().enumerate() {
                        let placed = node.prefix.get(at);
                        open.extend(
                            placed.into_iter().chain(&node.items).map(|next| (*next, item, level + 1)),
                        );
                    }
                }
                _ => {}
            }
            open.extend(node.same.iter().map(|next| (*next, value, level + 1)));
            if work.steps + open.len() > most {
                return Err(format!(
                    "it takes more than {most} steps for these arguments: parts of it apply to the same values again and again"
                ));
            }
            if level > MAX_LEVELS {
                return Err(format!("it goes deeper than {MAX_LEVELS} levels for these arguments"));
            }
        }
        Ok(work)
    }

    /// A part that applies to a value because it applies to it would never end.
    fn refuse_circles(&self) -> Result<(), String> {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            Open,
            Done(usize),
        }
        let mut states = vec![State::New; self.nodes.len()];
        for first in 0..self.nodes.len() {
            let mut open = vec![(first, 0)];
            while let Some((index, at)) = open.pop() {
                if at == 0 && matches!(states[index], State::Done(_)) {
                    continue;
                }
                states[index] = State::Open;
                let Some(next) = self.nodes[index].same.get(at) else {
                    let below = self.nodes[index].same.iter().map(|next| match states[*next] {
                        State::Done(levels) => levels,
                        State::New | State::Open => 0,
                    });
                    let levels = 1 + below.max().unwrap_or(0);
                    if levels > MAX_LEVELS_PER_VALUE {
                        return Err(format!(
                            "more than {MAX_LEVELS_PER_VALUE} of its parts refer to each other for the same value"
                        ));
                    }
                    states[index] = State::Done(levels);
                    continue;
                };
                open.push((index, at + 1));
                match states[*next] {
                    State::Open => {
                        return Err("a $ref leads back to itself before it comes to a property or an item, so it never ends".to_owned());
                    }
                    State::New => open.push((*next, 0)),
                    State::Done(_) => {}
                }
            }
        }
        Ok(())
    }
}

impl<'s> Builder<'s> {
    /// Notes what can be referred to, wherever it stands.
    fn survey(&mut self, value: &'s Value, resource: &'s Value) {
        let mut resource = resource;
        match value {
            Value::Object(fields) => {
                let text = |name: &str| fields.get(name).and_then(Value::as_str);
                // Before 2019-09 an anchor was an `$id` of a fragment only.
                if let Some(id) = text("$id") {
                    match id.strip_prefix('#') {
                        Some(anchor) if !anchor.is_empty() => {
                            self.anchors.entry(anchor).or_default().push(value);
                        }
                        _ => {
                            resource = value;
                            self.ids.push((id.trim_end_matches('#'), value));
                        }
                    }
                }
                for anchor in [text("$anchor"), text("$dynamicAnchor")].into_iter().flatten() {
                    self.anchors.entry(anchor).or_default().push(value);
                }
                fields.values().for_each(|field| self.survey(field, resource));
            }
            Value::Array(items) => items.iter().for_each(|item| self.survey(item, resource)),
            _ => {}
        }
        if !std::ptr::eq(resource, self.root) {
            self.resources.insert(std::ptr::from_ref(value), resource);
        }
    }

    /// The number of a part, which it gets when it is first referred to.
    fn index(&mut self, schema: &'s Value) -> Result<usize, String> {
        let new = self.open.len();
        let index = *self.indexes.entry(std::ptr::from_ref(schema)).or_insert(new);
        if index == new {
            self.open.push(schema);
        }
        if new > MAX_NODES { Err(format!("it has more than {MAX_NODES} parts")) } else { Ok(index) }
    }

    fn node(&mut self, schema: &'s Value) -> Result<Node, String> {
        let mut node = Node::default();
        let Value::Object(fields) = schema else { return Ok(node) };
        for keyword in REFERENCES {
            if let Some(reference) = fields.get(keyword).and_then(Value::as_str) {
                for target in self.targets(schema, reference)? {
                    node.same.push(self.index(target)?);
                }
            }
        }
        self.extend(&mut node.same, fields, &SAME)?;
        self.extend(&mut node.members, fields, &MEMBERS)?;
        self.extend(&mut node.items, fields, &ITEMS)?;
        if let Some(Value::Array(prefix)) = fields.get("prefixItems") {
            node.prefix = self.all(prefix)?;
        }
        if let Some(Value::Object(properties)) = fields.get("properties") {
            for (name, property) in properties {
                node.properties.insert(name.clone(), self.index(property)?);
            }
        }
        node.patterns = usize::from(fields.contains_key("pattern"));
        node.name_patterns = fields.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
        node.options = fields.get("enum").and_then(Value::as_array).map_or(0, Vec::len);
        Ok(node)
    }

    fn extend(
        &mut self,
        parts: &mut Vec<usize>,
        fields: &'s Map<String, Value>,
        keywords: &[&str],
    ) -> Result<(), String> {
        for keyword in keywords {
            match fields.get(*keyword) {
                None => {}
                Some(Value::Array(list)) => parts.extend(self.all(list)?),
                // An object of schemas; for the others the object is the schema.
                Some(Value::Object(map))
                    if matches!(*keyword, "dependentSchemas" | "dependencies" | "patternProperties") =>
                {
                    parts.extend(self.all(map.values())?);
                }
                Some(schema) => parts.push(self.index(schema)?),
            }
        }
        Ok(())
    }

    fn all(&mut self, schemas: impl IntoIterator<Item = &'s Value>) -> Result<Vec<usize>, String> {
        schemas.into_iter().map(|schema| self.index(schema)).collect()
    }

    /// The places that a reference may lead to.
    fn targets(&self, from: &'s Value, reference: &str) -> Result<Vec<&'s Value>, String> {
        let (base, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let resources = if base.is_empty() {
            let own = self.resources.get(&std::ptr::from_ref(from)).copied();
            vec![own.unwrap_or(self.root)]
        } else {
            // The validator resolves an address against that of the place; here its last part has to do.
            let named = |id: &str| last_part(id) == last_part(base);
            self.ids.iter().filter(|(id, _)| named(id)).map(|(_, resource)| *resource).collect()
        };
        let fragment = decoded(fragment);
        let targets: Vec<_> = if fragment.is_empty() || fragment.starts_with('/') {
            resources.iter().filter_map(|resource| resource.pointer(&fragment)).collect()
        } else {
            self.anchors.get(fragment.as_str()).cloned().unwrap_or_default()
        };
        if targets.is_empty() {
            let reference: String = reference.chars().take(MAX_SHOWN_CHARS).collect();
            return Err(format!(
                "its reference {reference:?} leads to nothing within the schema, and no other document is read: put what it names below $defs, and refer to \"#/$defs/…\""
            ));
        }
        Ok(targets)
    }
}

/// Of a reference that is shown.
const MAX_SHOWN_CHARS: usize = 200;

fn last_part(address: &str) -> &str {
    address.rsplit(['/', ':']).next().unwrap_or(address)
}

/// A fragment without its percent signs.
fn decoded(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
