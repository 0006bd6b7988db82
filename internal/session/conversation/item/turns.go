package item

// A Turn is what the person asked and everything until they asked again.
type Turn struct {
	Items []Item `json:"items"`
}

// Turns groups items into turns. Items before the first message of the person
// are a turn of their own: a page may begin in the middle of one.
func Turns(items []Item) []Turn {
	var out []Turn
	for i, it := range items {
		if i == 0 || it.Kind == User && items[i-1].Message != it.Message {
			out = append(out, Turn{})
		}
		last := &out[len(out)-1]
		last.Items = append(last.Items, it)
	}
	return out
}
