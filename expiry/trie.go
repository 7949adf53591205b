package expiry

import "strings"

// trie finds all keys that a text begins with, in time that depends on the text and
// not on how many keys there are. A node with a label is reached from its parent by
// the label's bytes.
type trie struct {
	label    string
	firsts   string // first bytes of the children's labels, in their order
	children []*trie
	rules    []int32 // of the key that ends here
	inner    *trie   // of the key that ends here
}

// add puts a rule under a key.
func (t *trie) add(key string, rule int32) {
	n := t.node(key)
	n.rules = append(n.rules, rule)
}

// node returns the node of a key, and makes it.
func (t *trie) node(key string) *trie {
	for key != "" {
		at := strings.IndexByte(t.firsts, key[0])
		if at < 0 {
			t.firsts += key[:1]
			t.children = append(t.children, &trie{label: key})
			return t.children[len(t.children)-1]
		}
		child := t.children[at]
		n := common(child.label, key)
		if n < len(child.label) { // part it where the two differ
			tail := *child
			tail.label = child.label[n:]
			*child = trie{label: child.label[:n], firsts: tail.label[:1], children: []*trie{&tail}}
		}
		t, key = child, key[n:]
	}
	return t
}

func common(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// next goes down by the text that is left, and returns what is left behind the node.
func (t *trie) next(text string) (*trie, string) {
	if text == "" {
		return nil, ""
	}
	at := strings.IndexByte(t.firsts, text[0])
	if at < 0 {
		return nil, ""
	}
	child := t.children[at]
	if !strings.HasPrefix(text, child.label) {
		return nil, ""
	}
	return child, text[len(child.label):]
}

// nextBack is next from the end of a text, in a trie of reversed keys.
func (t *trie) nextBack(text string) (*trie, string) {
	if text == "" {
		return nil, ""
	}
	at := strings.IndexByte(t.firsts, text[len(text)-1])
	if at < 0 {
		return nil, ""
	}
	child := t.children[at]
	n := len(child.label)
	if n > len(text) {
		return nil, ""
	}
	for i := range n {
		if child.label[i] != text[len(text)-1-i] {
			return nil, ""
		}
	}
	return child, text[:len(text)-n]
}

func reversed(s string) string {
	b := []byte(s)
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return string(b)
}
