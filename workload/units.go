package workload

import (
	"math"
	"strconv"
	"strings"
)

// number reads a decimal number of at most limit; signs and anything but digits are refused.
func number(text string, limit uint64) (uint64, bool) {
	value, err := strconv.ParseUint(text, 10, 64)
	return value, err == nil && value <= limit && text[0] != '+'
}

// unit is one suffix and how many of the smallest unit it stands for.
type unit struct {
	suffix string
	factor uint64
}

// Units are listed from large to small, since the formatter takes the first that divides; the parser
// looks for the longest suffix. mb and gb are powers of two (F156).
var (
	durationUnits = []unit{{"h", 3600 * 1000}, {"m", 60 * 1000}, {"s", 1000}, {"ms", 1}}
	memoryUnits   = []unit{{"gb", 1024}, {"mb", 1}}
)

// parseUnits reads a whole number with one of the units and gives it in the smallest.
func parseUnits(text string, units []unit) (uint32, bool) {
	best := unit{}
	for _, u := range units {
		if strings.HasSuffix(text, u.suffix) && len(u.suffix) > len(best.suffix) {
			best = u
		}
	}
	if best.suffix == "" {
		return 0, false
	}
	value, ok := number(strings.TrimSuffix(text, best.suffix), math.MaxUint32)
	value *= best.factor // below 2^32 * 3600000, which fits
	return uint32(value), ok && value <= math.MaxUint32
}

// formatUnits is the inverse of parseUnits with the largest unit that divides value.
func formatUnits(value uint32, units []unit) string {
	for _, u := range units {
		if uint64(value)%u.factor == 0 && value > 0 {
			return strconv.FormatUint(uint64(value)/u.factor, 10) + u.suffix
		}
	}
	return "0" + units[len(units)-1].suffix
}

// parseCPU reads 500m, 2 or 1.5 as thousandths of a core.
func parseCPU(text string) (uint32, bool) {
	if digits, milli := strings.CutSuffix(text, "m"); milli {
		value, ok := number(digits, CPUMillicoresMax)
		return uint32(value), ok
	}
	whole, fraction, point := strings.Cut(text, ".")
	if point && (fraction == "" || len(fraction) > 3) {
		return 0, false
	}
	fraction += "000"[len(fraction):]
	cores, ok := number(whole, CPUMillicoresMax/1000)
	part, partOK := number(fraction, 999)
	value := cores*1000 + part
	return uint32(value), ok && partOK && value <= CPUMillicoresMax
}

func formatCPU(millicores uint32) string {
	if millicores%1000 == 0 {
		return strconv.FormatUint(uint64(millicores)/1000, 10)
	}
	return strconv.FormatUint(uint64(millicores), 10) + "m"
}
