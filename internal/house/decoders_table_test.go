package house

// fuzzed says which decoders a fuzz target of the same package holds: package, target, decoders.
var fuzzed = map[string]map[string]string{
	"internal/cli": {
		"FuzzReadBounded": "readBounded",
		"FuzzUnderstand":  "understand",
		"FuzzWords":       "parseTarget parseSince parseReference parseEndpoint",
	},
	"internal/launcher": {
		"FuzzParseID": "parseID",
	},
	"ipc/attach": {
		"FuzzDocuments": "ParseLimit ParseRequest ParseUsage",
		"FuzzFrames":    "Decode ParseLine ParseExit ParseSize",
	},
	"ipc/attach/tree": {
		"FuzzReceive": "Receive receiver.receive",
	},
	"ipc/grant": {
		"FuzzParse": "Parse",
	},
	"ipc/invoke": {
		"FuzzParse":    "Parse",
		"FuzzPayloads": "ParseCall ParseOutcome",
	},
	"ipc/packet": {
		"FuzzReceive": "Conn.Receive",
	},
	"ipc/ring": {
		"FuzzReceive": "direction.receive",
	},
	"ipc/supply": {
		"FuzzParseNotice": "parseNotice",
		"FuzzReadWords":   "ReadWords",
	},
	"ipc/uds": {
		"FuzzDocument":                "Client.DoJSON",
		"FuzzParseAddresses":          "ParseTarget ParseEndpoint splitPort",
		"FuzzParseEnvironmentRequest": "ParseEnvironmentRequest",
		"FuzzParseWriteRequest":       "ParseWriteRequest",
		"FuzzReadFrame":               "ParseFrame parseHeader ReadFrame readPayload",
		"FuzzReply":                   "parseError parseConflict",
		"FuzzStreams":                 "ParseStreamOpen ParseStreamClose",
	},
	"meshd/antientropy": {
		"FuzzReceive": "Sessions.receiveBegin Sessions.receiveVector Sessions.receiveEnd " +
			"Sessions.receiveRequest Sessions.receiveResponse Sessions.Receive " +
			"Sessions.receiveState",
	},
	"meshd/cell": {
		"FuzzParseArrival": "parseArrival",
		"FuzzParseLeave":   "parseLeave",
		"FuzzReceive": "Cell.loadOf Cell.Receive Cell.receiveJoin Cell.receiveDelta Cell.receiveRelayed " +
			"Cell.receivePunch Cell.receiveStream",
	},
	"meshd/crdt": {
		"FuzzLoadSnapshot": "Store.LoadSnapshot Store.load Store.loadRegister",
	},
	"meshd/daemon": {
		"FuzzDefaultGateway": "defaultGateway",
		"FuzzDescribedAt":    "describedAt",
		"FuzzLoad":           "parseProcessorTime parseMemory",
		"FuzzParseForwarded": "parseForwarded",
	},
	"meshd/join": {
		"FuzzDoorKey":   "ParseDoorKey",
		"FuzzHandshake": "parseHello",
		"FuzzWelcome":   "parseWelcome parseAccepted",
	},
	"meshd/names": {
		"FuzzDNS": "parse parseService",
	},
	"meshd/nat": {
		"FuzzReceive": "Traversal.Receive",
	},
	"meshd/pcp": {
		"FuzzParse": "Request.Parse",
	},
	"meshd/reactor": {
		"FuzzParseControl": "parseControl",
		"FuzzParseName":    "parseName",
	},
	"meshd/resolver": {
		"FuzzParseUpstreams": "parseUpstreams",
		"FuzzReadFrame":      "readFrame",
	},
	"meshd/sim": {
		"FuzzParseFault": "ParseFault parseGroups Fault.parseOption parsePorts parseConstraints Shape.parse Machine.parse",
		"FuzzParseVerbs": "ParseVerbs ParseNATKind",
	},
	"meshd/state": {
		"FuzzKeys":         "SplitVIP splitAddress SplitEndpoint SplitDeny splitCell",
		"FuzzParseVerdict": "ParseVerdict ParseMarks",
		"FuzzSmallValues":  "ParseLoad ParsePast",
		"FuzzSplitKeys":    "SplitGateway SplitRollout splitRollout SplitEnvironment splitEnvironment SplitDrain",
		"FuzzStatus":       "ParseCellStatus",
		"FuzzValues":       "ParseCellContact ParseCellCapacity ParseCellEndpoint ParseCellDenial",
	},
	"meshd/storage": {
		"FuzzDamagedLog":     "loader.parseLog",
		"FuzzFiles":          "parseFile",
		"FuzzNextEntry":      "nextEntry",
		"FuzzParseHolder":    "parseHolder",
		"FuzzParseInventory": "parseInventory",
		"FuzzValues":         "parseIdentity parseCluster parsePeers parseIncarnation",
	},
	"meshd/swim": {
		"FuzzReceive": "Detector.Receive",
	},
	"meshd/wire": {
		"FuzzAntiEntropy": "ParseBegin ParseVector NextMerkleReq ParseMerkleResp NextExtension",
		"FuzzDelta":       "ParseDelta ParseDeltaAck",
		"FuzzHeader":      "ParseHeader Versions.ParseHeader",
		"FuzzParseCellID": "ParseEmpty ParseCellID DecodeCellID",
		"FuzzParseRelay":  "ParseRelay",
		"FuzzProbe":       "ParseContact parseObserved ParsePing ParseFindNode ParseNodes ParsePingReq ParsePingReqAck",
		"FuzzState":       "NextStateRecord NextEntry",
		"FuzzStreamAndPunch": "ParseGatewayClaim ParsePunchReq ParsePunchSyn ParseStreamOpen ParseStreamData " +
			"ParseStreamClose ParseStreamAck ParseRelayOffer ParseVolumeRequest",
	},
	"runnerd": {
		"FuzzParseExit":       "parseProcess parseExit",
		"FuzzParseGrants":     "grants.parse",
		"FuzzParseInstance":   "parseInstance",
		"FuzzParseInstanceID": "parseInstanceID",
		"FuzzParseReason":     "parseReason",
		"FuzzParseTraffic":    "parseTraffic",
	},
	"runnerd/cgroup": {
		"FuzzParseCounter": "parseCounter",
	},
	"runnerd/health": {
		"FuzzParseStatus": "parseStatus",
	},
	"runnerd/image/archive": {
		"FuzzRead": "Read Archive.index Archive.document",
	},
	"runnerd/image/layer": {
		"FuzzFilter": "Filter",
	},
	"runnerd/image/manifest": {
		"FuzzDigest":      "ParseDigest ParseHex",
		"FuzzParse":       "Parse unmarshal",
		"FuzzParseConfig": "ParseConfig",
	},
	"runnerd/image/registry": {
		"FuzzNormalize":        "parseTag",
		"FuzzParseCredentials": "ParseCredentials parseEntry",
	},
	"runnerd/image/store": {
		"FuzzParseMounts": "parseMounts",
		"FuzzParseRecord": "parseRecord",
		"FuzzParseRoot":   "parseRoot",
		"FuzzParseSize":   "parseSize",
	},
	"runnerd/podnet": {
		"FuzzParseLease":     "parseLease",
		"FuzzParseResolvers": "parseResolvers",
		"FuzzPool":           "pool.parse",
	},
	"runnerd/policy": {
		"FuzzParse": "Parse",
	},
	"runnerd/procfs": {
		"FuzzStat": "parseStat parseUsage",
	},
	"runnerd/record": {
		"FuzzParse": "Parse",
	},
	"runnerd/sandbox": {
		"FuzzAccounts":    "scanEntries",
		"FuzzAllocator":   "Allocator.parse",
		"FuzzParseRecord": "ParseRecord",
		"FuzzWords":       "parseExit parseSignal",
	},
	"runnerd/shim": {
		"FuzzDescribeProcess": "describeProcess",
		"FuzzParseConfig":     "parseConfig",
		"FuzzParseMark":       "parseMark",
		"FuzzParseWord":       "readWord parseWord",
	},
	"runnerd/wasm": {
		"FuzzPrepare":      "parseBinary binaryModule.parseSection",
		"FuzzReadSettings": "readSettings",
	},
	"workload": {
		"FuzzDecode":            "Decode Spec.decodeTLV",
		"FuzzDecodeEnvironment": "DecodeEnvironment",
		"FuzzParse":             "Parse",
		"FuzzFormatRoundTrip":   "SplitKey",
		"FuzzUnits":             "parseUnits parseCPU",
	},
	"workload/syntax": {
		"FuzzParse": "Parse ParseWith",
	},
}

// handsOn begins the reason of a function that reads bytes and passes all of them to a decoder that has a target.
const handsOn = "hands on to "

// unfuzzed says why a decoder has no target of its own: "package function" and the reason.
var unfuzzed = map[string]string{
	"internal/cli app.fetch":          "takes a file of the operator as it is",
	"internal/cli app.forget":         "reads an id that the same function has looked up in a status",
	"internal/cli app.readInput":      handsOn + "readBounded",
	"internal/cli app.wasmInvocation": "takes standard input as it is, bounded",
	"internal/cli copyTarget.receive": handsOn + "ReceiveInto",
	"internal/cli session.setDrained": "reads an id that the same function has looked up in a status",

	"ipc/attach/tree ReceiveInto":    handsOn + "receive",
	"ipc/invoke Channel.Receive":     handsOn + "Parse",
	"ipc/invoke Conn.Receive":        handsOn + "Parse",
	"ipc/invoke Conn.ReceiveFile":    handsOn + "Parse",
	"ipc/invoke Conn.receiveMessage": handsOn + "Descriptors",
	"ipc/invoke receive":             "a system call, the caller looks at the bytes",
	"ipc/ring Link.Receive":          handsOn + "receive",

	"ipc/uds blocking.readMessage": "a system call, the caller looks at the bytes",

	"meshd/cell Cell.ReadValue":  "looks up a name that a module gave",
	"meshd/cell Cell.ReadValues": "looks up a name that a module gave",
	"meshd/cell Cell.ReceiveVia": handsOn + "Receive",
	"meshd/cell splitValue":      "splits a key that the store holds, whose names every target of this package makes",

	"meshd/control ParseTarget": "adds a port to what ipc/uds has parsed",

	"meshd/daemon helper.drain":      "protobuf into a message; its fields are checked where they are used, by tests of meshd/reconcile",
	"meshd/daemon memoryInUse":       handsOn + "parseMemory",
	"meshd/daemon readProcessorTime": handsOn + "parseProcessorTime",

	"meshd/sim Node.Workload": "reads the simulated cell's own answer",
	"meshd/sim Node.alarms":   "reads the simulated cell's own answer",
	"meshd/sim Node.receive":  handsOn + "Receive",
	"meshd/sim showWorkloads": "reads the simulated cell's own answer",

	"meshd/state LoadKey": "makes the name of a key",

	"meshd/storage loader.load":       "directories as a whole: the tests of damage go through every file and byte (damage_test.go)",
	"meshd/storage loader.read":       handsOn + "parseFile",
	"meshd/storage loader.readLog":    handsOn + "parseLog",
	"meshd/storage lockDirectory":     handsOn + "parseHolder",
	"meshd/storage readBootID":        "an opaque text, compared and bounded",
	"meshd/storage readMachineID":     "an opaque text, compared and bounded",
	"meshd/storage systemDisk.Read":   "reads a file, bounded",
	"meshd/storage writer.salvageLog": handsOn + "wholeEntries",

	"runnerd Supervisor.readTrusted":       "reads a file, bounded",
	"runnerd compileCaches.isFor":          "compares with one text that it makes itself",
	"runnerd Supervisor.receiveUntilError": handsOn + "command",
	"runnerd loadInstance":                 handsOn + "parseInstance",
	"runnerd loadProcess":                  handsOn + "parseProcess",
	"runnerd networkOf":                    handsOn + "parseTraffic",
	"runnerd openGrants":                   handsOn + "parse",
	"runnerd readExit":                     handsOn + "parseExit",
	"runnerd wasmBackend.cacheKey":         "a key of 32 bytes, or another is made",
	"runnerd wasmReason":                   handsOn + "parseReason",

	"runnerd/cgroup Detect":       handsOn + "detect",
	"runnerd/cgroup Group.frozen": "compares with one word",
	"runnerd/cgroup Mount":        handsOn + "find",
	"runnerd/cgroup words":        "splits at blanks",

	"runnerd/image/manifest Digest.UnmarshalText": handsOn + "ParseDigest",
	"runnerd/image/registry LoadCredentials":      handsOn + "ParseCredentials",
	"runnerd/image/registry fetcher.document":     "bounded and compared with its digest; runnerd/image/manifest has the targets of documents",
	"runnerd/image/store Store.Load":              "archives: runnerd/image/archive FuzzRead",
	"runnerd/image/store Store.layerSize":         handsOn + "parseSize",
	"runnerd/image/store Store.load":              handsOn + "parseRecord",
	"runnerd/image/store mountPoints":             handsOn + "parseMounts",
	"runnerd/image/store readBlob":                "bounded and compared with its digest; runnerd/image/manifest has the targets of documents",
	"runnerd/image/store removeRoot":              handsOn + "parseRoot",
	"runnerd/image/store roots.describe":          handsOn + "parseRoot",

	"runnerd/podnet forwarding": "compares with one digit",
	"runnerd/podnet hasIPv6":    "compares with one digit",
	"runnerd/podnet set":        "compares with what is to be written",
	"runnerd/policy Load":       handsOn + "Parse",
	"runnerd/procfs BootID":     "an opaque text, compared",
	"runnerd/procfs Usage":      handsOn + "parseUsage",
	"runnerd/procfs procFields": "splits at zero bytes",
	"runnerd/procfs readStat":   handsOn + "parseStat",
	"runnerd/record Load":       handsOn + "Read",
	"runnerd/record Read":       handsOn + "Parse",

	"runnerd/shim Restore":             "writes files",
	"runnerd/shim awaitConfig":         handsOn + "parseConfig",
	"runnerd/shim openLog":             "one number that is shown",
	"runnerd/shim shim.callExternal":   "shows the last line of a log of the runtime that the administrator chose",
	"runnerd/shim shim.inner":          "one number from the init of this release",
	"runnerd/shim shim.startExternal":  "one number from the runtime that the administrator chose",
	"runnerd/shim stageProcess.result": "one line from the stage of this release, bounded",
	"runnerd/shim writeProcess":        handsOn + "describeProcess",
	"runnerd/wasm guardedFS.Readlink":  "asks the file system about a name, see TestEscapes",
	"runnerd/wasm worker.load":         handsOn + "open",
}
