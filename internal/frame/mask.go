package frame

import (
	"crypto/subtle"
	"encoding/binary"
	"math/bits"
)

// maskBlock is how many bytes of repeated key are laid out for one vectorised
// XOR: half costs more calls, double more filling, for no measured gain.
const maskBlock = 512

// maskLong is the payload length from which laying out the block pays.
const maskLong = 1024

// Mask XORs b in place with key as if b started at byte pos of its frame's
// payload. Masking and unmasking are the same.
func Mask(key [4]byte, pos int64, b []byte) {
	unmask(b, b, rotate(binary.LittleEndian.Uint32(key[:]), pos))
}

// rotate is the key, as a little-endian word, that byte pos of a payload meets.
func rotate(key uint32, pos int64) uint32 {
	return bits.RotateLeft32(key, -8*int(pos&3))
}

// unmask XORs src with key into dst, which has the same length and is src
// itself, or starts before src in the same array, or does not overlap it.
func unmask(dst, src []byte, key uint32) {
	if len(src) < maskLong {
		unmaskWords(dst, src, key)
		return
	}
	var block [maskBlock]byte
	k := uint64(key)<<32 | uint64(key)
	for i := 0; i < maskBlock; i += 8 {
		binary.LittleEndian.PutUint64(block[i:], k)
	}
	same := &dst[0] == &src[0]
	for len(src) > 0 {
		n := min(len(src), maskBlock)
		// XORBytes wants its arguments to overlap exactly or not at all, hence
		// the move after it; the block is in the first-level cache by then.
		subtle.XORBytes(src[:n], src[:n], block[:n])
		if !same {
			copy(dst[:n], src[:n])
		}
		dst, src = dst[n:], src[n:]
	}
}

// unmaskWords is unmask by words of 8 bytes, front to back.
func unmaskWords(dst, src []byte, key uint32) {
	k := uint64(key)<<32 | uint64(key)
	dst = dst[:len(src)]
	for len(src) >= 32 {
		s, d := (*[32]byte)(src), (*[32]byte)(dst)
		// All four are read before the first is written: dst may start as
		// little as one byte before src.
		w0 := binary.LittleEndian.Uint64(s[0:8])
		w1 := binary.LittleEndian.Uint64(s[8:16])
		w2 := binary.LittleEndian.Uint64(s[16:24])
		w3 := binary.LittleEndian.Uint64(s[24:32])
		binary.LittleEndian.PutUint64(d[0:8], w0^k)
		binary.LittleEndian.PutUint64(d[8:16], w1^k)
		binary.LittleEndian.PutUint64(d[16:24], w2^k)
		binary.LittleEndian.PutUint64(d[24:32], w3^k)
		src, dst = src[32:], dst[32:]
	}
	for len(src) >= 8 {
		binary.LittleEndian.PutUint64(dst, binary.LittleEndian.Uint64(src)^k)
		src, dst = src[8:], dst[8:]
	}
	for i := range src {
		dst[i] = src[i] ^ byte(k)
		k = bits.RotateLeft64(k, -8)
	}
}
