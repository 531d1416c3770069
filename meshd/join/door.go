package join

import (
	"encoding/base32"
	"fmt"

	"colloid.net/meshd/seal"
)

const labelDoor = "colloid v1 door key"

// DoorKey derives what a joiner of a locked cluster must know from the cluster key. It opens the door
// but does not read datagrams, and changes with the cluster key.
func DoorKey(cluster seal.Key) seal.Key { return seal.Derive(cluster, labelDoor) }

// doorKeyLength is the length of the text form: 32 bytes in base32 without padding.
const doorKeyLength = 52

var doorEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// FormatDoorKey returns the text form of a door key: 52 lower-case base32 letters and digits.
func FormatDoorKey(door seal.Key) string { return doorEncoding.EncodeToString(door[:]) }

// ParseDoorKey accepts exactly what FormatDoorKey prints. Its errors do not repeat the text, which is
// a secret even when mistyped.
func ParseDoorKey(text string) (seal.Key, error) {
	if len(text) != doorKeyLength {
		return seal.Key{}, fmt.Errorf("door key of %d characters: want the %d that colloid lock shows",
			len(text), doorKeyLength)
	}
	var door seal.Key
	raw, err := doorEncoding.DecodeString(text)
	if err != nil || copy(door[:], raw) != len(door) || FormatDoorKey(door) != text {
		return seal.Key{}, fmt.Errorf("door key is mistyped: it has only the characters a-z and 2-7")
	}
	return door, nil
}
