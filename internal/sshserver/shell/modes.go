//go:build unix

package shell

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// Opcodes of RFC 4254 part 8 with a meaning of their own.
const (
	opEnd = 0
	// opFirstUnparsed begins the opcodes whose argument has no defined size.
	opFirstUnparsed = 160
	// disabledChar is the argument that switches a control character off.
	disabledChar = 255
	// maxModes bounds the list: there are 54 opcodes.
	maxModes = 128
)

// controlChars maps opcodes to control characters that every unix has.
var controlChars = map[byte]int{
	1: unix.VINTR, 2: unix.VQUIT, 3: unix.VERASE, 4: unix.VKILL, 5: unix.VEOF, 6: unix.VEOL, 7: unix.VEOL2,
	8: unix.VSTART, 9: unix.VSTOP, 10: unix.VSUSP, 12: unix.VREPRINT, 13: unix.VWERASE, 14: unix.VLNEXT, 18: unix.VDISCARD,
}

// flag is one bit of one of a terminal's four words.
type flag struct {
	word func(*unix.Termios) *flagWord
	bit  flagWord
}

func input(t *unix.Termios) *flagWord   { return &t.Iflag }
func local(t *unix.Termios) *flagWord   { return &t.Lflag }
func output(t *unix.Termios) *flagWord  { return &t.Oflag }
func control(t *unix.Termios) *flagWord { return &t.Cflag }

// flags maps opcodes to bits. Speeds mean nothing to a pseudo-terminal, and the
// character size stays 8 bits: with UTF-8 anything else loses text.
var flags = map[byte]flag{
	30: {input, unix.IGNPAR}, 31: {input, unix.PARMRK}, 32: {input, unix.INPCK}, 33: {input, unix.ISTRIP},
	34: {input, unix.INLCR}, 35: {input, unix.IGNCR}, 36: {input, unix.ICRNL}, 38: {input, unix.IXON},
	39: {input, unix.IXANY}, 40: {input, unix.IXOFF}, 41: {input, unix.IMAXBEL}, 42: {input, unix.IUTF8},
	50: {local, unix.ISIG}, 51: {local, unix.ICANON}, 53: {local, unix.ECHO}, 54: {local, unix.ECHOE},
	55: {local, unix.ECHOK}, 56: {local, unix.ECHONL}, 57: {local, unix.NOFLSH}, 58: {local, unix.TOSTOP},
	59: {local, unix.IEXTEN}, 60: {local, unix.ECHOCTL}, 61: {local, unix.ECHOKE}, 62: {local, unix.PENDIN},
	70: {output, unix.OPOST}, 72: {output, unix.ONLCR}, 73: {output, unix.OCRNL}, 74: {output, unix.ONOCR}, 75: {output, unix.ONLRET},
	92: {control, unix.PARENB}, 93: {control, unix.PARODD},
}

// setModes applies encoded terminal modes to a terminal. Unknown opcodes are
// passed over, a list that is cut off counts as far as it goes. The input is
// marked as UTF-8 unless the device says otherwise, so that erasing in the
// line editor of the kernel takes whole characters.
func setModes(tty *os.File, modes []byte) error {
	return withFd(tty, func(fd int) error {
		t, err := unix.IoctlGetTermios(fd, getTermios)
		if err != nil {
			return err
		}
		t.Iflag |= unix.IUTF8
		applyModes(t, modes)
		return unix.IoctlSetTermios(fd, setTermios, t)
	})
}

func applyModes(t *unix.Termios, modes []byte) {
	for range maxModes {
		if len(modes) < 5 || modes[0] == opEnd || modes[0] >= opFirstUnparsed {
			return
		}
		op, value := modes[0], binary.BigEndian.Uint32(modes[1:])
		modes = modes[5:]
		if at, ok := controlChars[op]; ok {
			if value == disabledChar {
				t.Cc[at] = disabledCc
			} else {
				t.Cc[at] = byte(value)
			}
			continue
		}
		f, ok := flags[op]
		switch {
		case !ok:
		case value != 0:
			*f.word(t) |= f.bit
		default:
			*f.word(t) &^= f.bit
		}
	}
}
