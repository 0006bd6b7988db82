CREATE TABLE session (id text PRIMARY KEY, project_id text NOT NULL, parent_id text, slug text NOT NULL, directory text NOT NULL, title text NOT NULL, version text NOT NULL, time_created integer NOT NULL, time_updated integer NOT NULL);
CREATE TABLE message (id text PRIMARY KEY, session_id text NOT NULL, time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL);
CREATE TABLE part (id text PRIMARY KEY, message_id text NOT NULL, session_id text NOT NULL, time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL);
INSERT INTO session VALUES
 ('ses_one', 'p1', NULL, 'one', '/home/dev/project', 'A greeting', '1.2.0', 1770000000000, 1770000009000),
 ('ses_sub', 'p1', 'ses_one', 'sub', '/home/dev/project', 'A sub-agent', '1.2.0', 1770000004000, 1770000005000),
 ('ses_two', 'p1', NULL, 'two', '/home/dev/other', 'Elsewhere', '1.2.0', 1760000000000, 1760000009000);
INSERT INTO message VALUES
 ('msg_1', 'ses_one', 1770000001000, 1770000001000, '{"role":"user","time":{"created":1770000001000},"agent":"build"}'),
 ('msg_2', 'ses_one', 1770000002000, 1770000006000, '{"role":"assistant","time":{"created":1770000002000,"completed":1770000006000},"parentID":"msg_1","modelID":"test-model","finish":"tool-calls"}'),
 ('msg_3', 'ses_one', 1770000007000, 1770000008000, '{"role":"assistant","time":{"created":1770000007000,"completed":1770000008000},"parentID":"msg_1","modelID":"test-model","finish":"stop"}'),
 ('msg_4', 'ses_one', 1770000008500, 1770000008500, '{"role":"user","time":{"created":1770000008500}}'),
 ('msg_5', 'ses_one', 1770000008600, 1770000009000, '{"role":"assistant","time":{"created":1770000008600,"completed":1770000009000},"error":{"name":"MessageAbortedError","data":{"message":"aborted"}}}'),
 ('msg_s', 'ses_sub', 1770000004000, 1770000005000, '{"role":"assistant","time":{"created":1770000004000,"completed":1770000005000},"finish":"stop"}');
INSERT INTO part VALUES
 ('prt_1', 'msg_1', 'ses_one', 1770000001000, 1770000001000, '{"type":"text","text":"say hello"}'),
 ('prt_2', 'msg_1', 'ses_one', 1770000001000, 1770000001000, '{"type":"text","synthetic":true,"text":"not for people"}'),
 ('prt_3', 'msg_1', 'ses_one', 1770000001000, 1770000001000, '{"type":"file","mime":"image/png","filename":"shot.png","url":"data:image/png;base64,DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD"}'),
 ('prt_4', 'msg_2', 'ses_one', 1770000002000, 1770000002000, '{"type":"step-start"}'),
 ('prt_5', 'msg_2', 'ses_one', 1770000002000, 1770000002000, '{"type":"reasoning","text":"A greeting is wanted."}'),
 ('prt_6', 'msg_2', 'ses_one', 1770000002000, 1770000003000, '{"type":"tool","tool":"bash","callID":"c1","state":{"status":"completed","input":{"command":"echo hello"},"output":"hello\n","title":"echo","metadata":{"exit":0},"time":{"start":1770000002100,"end":1770000002600}}}'),
 ('prt_7', 'msg_2', 'ses_one', 1770000002000, 1770000003000, '{"type":"tool","tool":"edit","callID":"c2","state":{"status":"completed","input":{"filePath":"/home/dev/a.txt"},"output":"ok","metadata":{"diff":"--- a.txt\n+++ a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"},"time":{"start":1,"end":2}}}'),
 ('prt_8', 'msg_2', 'ses_one', 1770000002000, 1770000005000, '{"type":"tool","tool":"task","callID":"c3","state":{"status":"completed","input":{"description":"look","prompt":"look into it"},"output":"seen","metadata":{"sessionId":"ses_sub"},"time":{"start":1770000004000,"end":1770000005000}}}'),
 ('prt_9', 'msg_2', 'ses_one', 1770000002000, 1770000005000, '{"type":"tool","tool":"webfetch","callID":"c4","state":{"status":"error","input":{"url":"https://example.org/"},"error":"The user rejected permission to use this specific tool call.","time":{"start":1,"end":2}}}'),
 ('prt_a', 'msg_3', 'ses_one', 1770000007000, 1770000008000, '{"type":"text","text":"Hello!"}'),
 ('prt_b', 'msg_4', 'ses_one', 1770000008500, 1770000008500, '{"type":"text","text":"and once more"}'),
 ('prt_c', 'msg_5', 'ses_one', 1770000008600, 1770000008600, 'not json'),
 ('prt_s', 'msg_s', 'ses_sub', 1770000004000, 1770000005000, '{"type":"text","text":"I am the sub-agent."}');
