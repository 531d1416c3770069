package message

// AlarmPrefix begins a degradation in a Hello that is more than that: meshd shows it as a critical alarm,
// without the prefix.
const AlarmPrefix = "alarm: "
