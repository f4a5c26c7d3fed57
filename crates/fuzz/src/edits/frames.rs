//! Edits of netlink messages. The lengths of messages and attributes are those of the edited content, but for a few bytes that may
//! be changed wherever they are.

use portolan_wire::{Attributes, Frames};

use super::MOST;
use crate::script::Script;

/// Bytes of the longest content that an edit inserts.
const LONGEST: usize = 64;
/// Messages with more attributes are edited no more.
const MOST_NODES: usize = 8_192;
/// Bytes of a message's header after its length, and of an attribute's.
const MESSAGE_HEAD: usize = 12;
const ATTRIBUTE_HEAD: usize = 2;
/// The most bytes that are changed without regard to what they are.
const MOST_DAMAGED: usize = 3;
/// Bits of an attribute's type that are its number (`NLA_TYPE_MASK`).
const NUMBER: u16 = 0x3fff;
/// A greater number is taken for content, not for an attribute.
const GREATEST_NUMBER: u16 = 64;

/// A message or an attribute.
#[derive(Debug, Clone)]
struct Node {
    /// The message's header without its length, or the attribute's type.
    head: Vec<u8>,
    /// The content before attributes; all of it, if there are none.
    content: Vec<u8>,
    attributes: Vec<Node>,
}

/// Edits messages until the script is over. `fixed` returns the bytes of a message's own header by its type.
pub(crate) fn edit(messages: &[u8], fixed: impl Fn(u16) -> usize, script: &mut Script<'_>) -> Vec<u8> {
    let damaged = script.below(4 * MOST_DAMAGED).saturating_sub(3 * MOST_DAMAGED);
    let damaged: Vec<(usize, u8)> = (0..damaged).map(|_| (script.below(1 << 16), script.byte())).collect();
    let mut root = Node { head: Vec::new(), content: Vec::new(), attributes: read(messages, fixed) };
    for _ in 0..MOST {
        if script.is_over() {
            break;
        }
        let count = root.count();
        if count > MOST_NODES {
            break;
        }
        let (at, other) = (script.below(count), script.below(count));
        let donor = root.at(&mut other.clone()).expect("it is less than the number of nodes").clone();
        root.edit(&mut at.clone(), &donor, script);
    }
    let mut bytes: Vec<u8> = root.attributes.iter().flat_map(Node::message).collect();
    for (place, byte) in damaged {
        let at = (bytes.len() * place) >> 16;
        if let Some(damaged) = bytes.get_mut(at) {
            *damaged = byte;
        }
    }
    bytes
}

/// Reads messages into nodes. What is no message is left out.
fn read(messages: &[u8], fixed: impl Fn(u16) -> usize) -> Vec<Node> {
    let mut offset = 0;
    let mut nodes = Vec::new();
    for frame in Frames::new(messages).map_while(Result::ok) {
        let end = offset + usize::try_from(frame.header.length).expect("the message is in memory");
        let head = messages[offset + 4..offset + 16].to_vec();
        let (content, rest) = frame.payload.split_at(fixed(frame.header.kind).min(frame.payload.len()));
        let mut node = Node { head, content: content.to_vec(), attributes: Vec::new() };
        match attributes(rest) {
            Some(attributes) => node.attributes = attributes,
            None => node.content.extend_from_slice(rest),
        }
        nodes.push(node);
        offset = end.next_multiple_of(4);
    }
    nodes
}

/// Returns the attributes that the bytes are, or `None` if they are something else.
fn attributes(bytes: &[u8]) -> Option<Vec<Node>> {
    if bytes.is_empty() {
        return None;
    }
    let read = Attributes::new("attributes", bytes, 0).collect::<Result<Vec<_>, _>>().ok()?;
    let mut nodes = Vec::new();
    let mut offset = 0;
    for attribute in read {
        let kind = bytes.get(offset + 2..offset + 4)?;
        let number = u16::from_ne_bytes(kind.try_into().ok()?) & NUMBER;
        if number > GREATEST_NUMBER {
            return None;
        }
        let (content, inner) = match attributes(attribute.payload) {
            Some(inner) => (Vec::new(), inner),
            None => (attribute.payload.to_vec(), Vec::new()),
        };
        nodes.push(Node { head: kind.to_vec(), content, attributes: inner });
        offset += (4 + attribute.payload.len()).next_multiple_of(4);
    }
    Some(nodes)
}

impl Node {
    /// Returns the number of nodes, with this one.
    fn count(&self) -> usize {
        1 + self.attributes.iter().map(Self::count).sum::<usize>()
    }

    /// Returns the node that has this number of nodes before it. Counts down otherwise.
    fn at(&self, left: &mut usize) -> Option<&Self> {
        if *left == 0 {
            return Some(self);
        }
        *left -= 1;
        self.attributes.iter().find_map(|node| node.at(left))
    }

    /// Edits what is in the node that has this number of nodes before it. Returns false, and counts down, if it is elsewhere.
    fn edit(&mut self, left: &mut usize, donor: &Self, script: &mut Script<'_>) -> bool {
        if *left > 0 {
            *left -= 1;
            return self.attributes.iter_mut().any(|node| node.edit(left, donor, script));
        }
        let count = self.attributes.len();
        let (one, two) = (script.below(count), script.below(count + 1));
        match script.below(8) {
            0 if count > 0 => drop(self.attributes.remove(one)),
            1 if count > 0 => self.attributes.insert(two, self.attributes[one].clone()),
            2 if count > 0 => self.attributes.swap(one, two.min(count - 1)),
            3 => {
                self.content.clone_from(&donor.content);
                self.attributes.clone_from(&donor.attributes);
            }
            4 => self.content = script.bytes(LONGEST).to_vec(),
            5 => {
                let at = script.below(self.head.len());
                if let Some(byte) = self.head.get_mut(at) {
                    *byte = script.byte();
                }
            }
            6 => self.content.truncate(script.below(self.content.len())),
            _ => {
                let at = script.below(self.content.len());
                if let Some(byte) = self.content.get_mut(at) {
                    *byte = script.byte();
                }
            }
        }
        true
    }

    /// Returns the node as a message.
    fn message(&self) -> Vec<u8> {
        let (head, content) = (self.head_of(MESSAGE_HEAD), self.encoded_content());
        let length = u32::try_from(4 + head.len() + content.len()).expect("it is short");
        padded([&length.to_ne_bytes()[..], &head, &content].concat())
    }

    /// Returns the node as an attribute. Its content is cut to what fits.
    fn attribute(&self) -> Vec<u8> {
        let (head, mut content) = (self.head_of(ATTRIBUTE_HEAD), self.encoded_content());
        content.truncate(usize::from(u16::MAX) - 2 - head.len());
        let length = u16::try_from(2 + head.len() + content.len()).expect("it was cut");
        padded([&length.to_ne_bytes()[..], &head, &content].concat())
    }

    /// Returns the head with this number of bytes. A message that was moved among attributes has a longer one.
    fn head_of(&self, length: usize) -> Vec<u8> {
        let mut head = self.head.clone();
        head.resize(length, 0);
        head
    }

    fn encoded_content(&self) -> Vec<u8> {
        let mut content = self.content.clone();
        content.extend(self.attributes.iter().flat_map(Self::attribute));
        content
    }
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use portolan_model::Family;

    use super::*;
    use crate::script::random;

    #[test]
    fn edits_change_messages_and_leave_messages() {
        let messages = portolan_nftables::fuzzing::kube_proxy(Family::Ipv4);
        assert!(read(messages, |_| 4).iter().map(Node::count).sum::<usize>() < MOST_NODES / 2);
        let (mut changed, mut whole) = (0, 0);
        for seed in 0..64 {
            let edited = edit(messages, |_| 4, &mut Script::new(&random(seed, 12)));
            changed += usize::from(edited != messages);
            whole += usize::from(Frames::new(&edited).all(|frame| frame.is_ok()));
        }
        assert!(changed > 60 && whole > 32, "{changed} {whole}");
    }

    #[test]
    fn a_message_among_attributes_and_an_attribute_among_messages_have_their_lengths() {
        let leaf = |head: Vec<u8>| Node { head, content: vec![7; 5], attributes: Vec::new() };
        let (message, attribute) = (leaf(vec![1; MESSAGE_HEAD]), leaf(vec![2; ATTRIBUTE_HEAD]));
        assert_eq!(message.attribute()[..4], [9, 0, 1, 1]);
        assert_eq!(message.attribute().len(), 12);
        assert_eq!(attribute.message()[..6], [21, 0, 0, 0, 2, 2]);
        assert_eq!(attribute.message().len(), 24);
    }
}
