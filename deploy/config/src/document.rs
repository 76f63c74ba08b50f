//! A YAML document in which every key and value knows its line.

use std::path::{Path, PathBuf};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span};

use crate::error::{ConfigError, Position, Problem};

/// Nesting no configuration needs; keeps the recursion over the tree bounded.
const DEPTH_LIMIT: usize = 16;

/// One file, parsed.
pub(crate) struct Document {
    file: PathBuf,
    pub(crate) root: Node,
}

/// A value and where it is. For a list or a section behind a key, that is where the key is.
pub(crate) struct Node {
    pub(crate) position: Position,
    pub(crate) content: Content,
}

pub(crate) enum Content {
    /// Text, and whether it was written without quotes.
    Scalar(String, bool),
    List(Vec<Node>),
    Section(Vec<Entry>),
}

pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) position: Position,
    pub(crate) value: Node,
}

impl Node {
    /// Nothing behind the key.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar(text, true) if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }
}

impl Document {
    /// Parses a file's text. An empty file is an empty section.
    pub(crate) fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        match Builder::new(text).build() {
            Ok(root) => Ok(Self {
                file: file.to_owned(),
                root,
            }),
            Err(fault) => Err(ConfigError {
                file: file.to_owned(),
                position: Some(fault.position),
                key: fault.key,
                problem: fault.problem,
            }),
        }
    }

    /// The error for a problem at a place of this file.
    pub(crate) fn error(&self, position: Position, key: &str, problem: Problem) -> ConfigError {
        ConfigError {
            file: self.file.clone(),
            position: Some(position),
            key: key.to_owned(),
            problem: Box::new(problem),
        }
    }

    /// The error for a problem with a key, at the key or, when it is left out, at the nearest section around it.
    pub(crate) fn error_at(&self, key: &str, problem: Problem) -> ConfigError {
        self.error(self.locate(key), key, problem)
    }

    /// Where `a.b[2].c` is, or the last part of that path that exists.
    pub(crate) fn locate(&self, key: &str) -> Position {
        let mut node = &self.root;
        for step in key.split(['.', '[']).filter(|step| !step.is_empty()) {
            let next = match (&node.content, step.strip_suffix(']')) {
                (Content::List(items), Some(index)) => {
                    index.parse().ok().and_then(|index: usize| items.get(index))
                }
                (Content::Section(entries), None) => entries
                    .iter()
                    .find(|entry| entry.key == step)
                    .map(|entry| &entry.value),
                _ => None,
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node.position
    }
}

/// A mistake in the shape of the document.
struct Fault {
    position: Position,
    key: String,
    problem: Box<Problem>,
}

impl From<ScanError> for Fault {
    fn from(error: ScanError) -> Self {
        Self {
            position: position(*error.marker()),
            key: String::new(),
            problem: Box::new(Problem::Syntax(printable(error.info()))),
        }
    }
}

fn position(marker: Marker) -> Position {
    Position {
        line: marker.line().max(1),
        column: marker.col() + 1,
    }
}

/// Text fit for one line of a log: escaped, and cut when long.
pub(crate) fn printable(text: &str) -> String {
    const LIMIT: usize = 60;
    let mut out: String = text
        .chars()
        .take(LIMIT)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(LIMIT).is_some() {
        out.push_str("...");
    }
    out
}

/// A list or section that is still open.
struct Open {
    node: Node,
    /// In a section: a key whose value has not come yet.
    key: Option<(String, Position)>,
}

struct Builder<'text> {
    parser: Parser<'text, saphyr_parser::StrInput<'text>>,
    open: Vec<Open>,
    root: Option<Node>,
}

impl<'text> Builder<'text> {
    fn new(text: &'text str) -> Self {
        Self {
            parser: Parser::new_from_str(text),
            open: Vec::new(),
            root: None,
        }
    }

    fn build(mut self) -> Result<Node, Fault> {
        while let Some(event) = self.parser.next_event() {
            let (event, span) = event?;
            self.take(event, span)?;
        }
        Ok(self.root.unwrap_or(Node {
            position: Position { line: 1, column: 1 },
            content: Content::Section(Vec::new()),
        }))
    }

    fn take(&mut self, event: Event<'text>, span: Span) -> Result<(), Fault> {
        let position = position(span.start);
        match event {
            Event::DocumentStart(_) if self.root.is_some() => {
                Err(self.fault(position, Problem::SecondDocument))
            }
            Event::Alias(_) => Err(self.fault(position, Problem::Feature("alias"))),
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => Err(self.fault(position, Problem::Feature("tag"))),
            Event::Scalar(_, _, 1.., _)
            | Event::SequenceStart(1.., _)
            | Event::MappingStart(1.., _) => Err(self.fault(position, Problem::Feature("anchor"))),
            Event::Scalar(text, style, ..) => {
                self.scalar(text.into_owned(), style == ScalarStyle::Plain, position)
            }
            Event::SequenceStart(..) => self.start(Content::List(Vec::new()), position),
            Event::MappingStart(..) => self.start(Content::Section(Vec::new()), position),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => self.value(open.node),
                None => Ok(()),
            },
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn start(&mut self, content: Content, position: Position) -> Result<(), Fault> {
        if self.open.len() == DEPTH_LIMIT {
            return Err(self.fault(position, Problem::TooDeep { limit: DEPTH_LIMIT }));
        }
        let position = match self.open.last() {
            Some(Open {
                key: Some((_, at)), ..
            }) => *at,
            Some(Open {
                key: None,
                node:
                    Node {
                        content: Content::Section(_),
                        ..
                    },
            }) => {
                return Err(self.fault(position, Problem::KeyNotText));
            }
            _ => position,
        };
        self.open.push(Open {
            node: Node { position, content },
            key: None,
        });
        Ok(())
    }

    fn scalar(&mut self, text: String, plain: bool, position: Position) -> Result<(), Fault> {
        if let Some(Open {
            key: key @ None,
            node:
                Node {
                    content: Content::Section(entries),
                    ..
                },
        }) = self.open.last_mut()
        {
            if text.is_empty() {
                return Err(self.fault(position, Problem::KeyNotText));
            }
            let first = entries
                .iter()
                .find(|entry| entry.key == text)
                .map(|entry| entry.position.line);
            *key = Some((text, position));
            return match first {
                Some(first_line) => Err(self.fault(position, Problem::KeyTwice { first_line })),
                None => Ok(()),
            };
        }
        self.value(Node {
            position,
            content: Content::Scalar(text, plain),
        })
    }

    fn value(&mut self, value: Node) -> Result<(), Fault> {
        match self.open.last_mut() {
            None => self.root = Some(value),
            Some(open) => match &mut open.node.content {
                Content::List(items) => items.push(value),
                Content::Section(entries) => {
                    if let Some((key, position)) = open.key.take() {
                        entries.push(Entry {
                            key,
                            position,
                            value,
                        });
                    }
                }
                Content::Scalar(..) => {}
            },
        }
        Ok(())
    }

    fn fault(&self, position: Position, problem: Problem) -> Fault {
        let mut key = String::new();
        for open in &self.open {
            match (&open.node.content, &open.key) {
                (Content::List(items), _) => key.push_str(&format!("[{}]", items.len())),
                (_, Some((name, _))) => {
                    if !key.is_empty() {
                        key.push('.');
                    }
                    key.push_str(&printable(name));
                }
                _ => {}
            }
        }
        Fault {
            position,
            key,
            problem: Box::new(problem),
        }
    }
}
