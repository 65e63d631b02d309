// Owns Envoy's service for picking an endpoint: proto/ext_proc.proto, and the shapes of its messages.
import type { MethodDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { shipped } from "../base/shipped.ts";

export interface HeaderValue {
  key: string;
  value?: string;
  rawValue?: Buffer;
}

export interface HttpHeaders {
  headers?: { headers?: HeaderValue[] };
  endOfStream?: boolean;
}

export interface HttpBody {
  body?: Buffer;
  endOfStream?: boolean;
}

/** One of these is set. */
export interface ProcessingRequest {
  requestHeaders?: HttpHeaders;
  responseHeaders?: HttpHeaders;
  requestBody?: HttpBody;
  responseBody?: HttpBody;
  requestTrailers?: object;
  responseTrailers?: object;
}

interface HeaderMutation {
  setHeaders?: { header: HeaderValue; appendAction: number }[];
  removeHeaders?: string[];
}

interface CommonResponse {
  response: {
    headerMutation?: HeaderMutation;
    bodyMutation?: { streamedResponse: HttpBody };
  };
}

/** Subset of protobuf's Struct: texts and structs alone. */
export interface Struct {
  fields: Record<string, { stringValue: string } | { structValue: Struct }>;
}

/** One of these is set, besides the metadata. */
export interface ProcessingResponse {
  requestHeaders?: CommonResponse;
  responseHeaders?: CommonResponse;
  requestBody?: CommonResponse;
  responseBody?: CommonResponse;
  requestTrailers?: object;
  responseTrailers?: object;
  immediateResponse?: {
    status: { code: number };
    headers: HeaderMutation;
    body: Buffer;
    details: string;
  };
  dynamicMetadata?: Struct;
}

const OVERWRITE = 2;

/** Sets headers of a request or an answer, over existing ones. */
export function headersSet(headers: Readonly<Record<string, string>>): HeaderMutation {
  return {
    setHeaders: Object.entries(headers).map(([key, value]) => ({
      header: { key, rawValue: Buffer.from(value) },
      appendAction: OVERWRITE,
    })),
  };
}

export interface ExtProcService {
  Process: MethodDefinition<ProcessingRequest, ProcessingResponse>;
}

export const extProcService: ExtProcService = loadSync(shipped("proto/ext_proc.proto"), {
  oneofs: false,
  defaults: false,
})["envoy.service.ext_proc.v3.ExternalProcessor"] as unknown as ExtProcService;
