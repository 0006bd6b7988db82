//go:build !unix

package sock

// init leaves the Reader with its plain path.
func (r *Reader) init() {}
