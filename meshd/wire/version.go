package wire

// Versions is the range of protocol versions that a program speaks (F26). A version decides which message
// types there are and what their payloads look like. Header, trailer and the join handshake are the same in
// all of them: only so can cells of different versions find out about each other.
//
// A rolling upgrade works as long as a new program still speaks the newest version of the program before it.
type Versions struct{ Min, Max uint8 }

// Spoken is what this program speaks.
var Spoken = Versions{Version, Version}

// Valid reports whether v is a range; version 0 does not exist.
func (v Versions) Valid() bool { return v.Min > 0 && v.Min <= v.Max }

// Includes reports whether one version is in the range.
func (v Versions) Includes(version uint8) bool { return v.Min <= version && version <= v.Max }

// Common returns the greatest version that both speak; ok is false if there is none.
func (v Versions) Common(other Versions) (version uint8, ok bool) {
	version = min(v.Max, other.Max)
	return version, version >= v.Min && version >= other.Min
}
